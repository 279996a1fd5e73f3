"""Settings are shown, judged, printed and set as a host of that size needs them.

Method: made-up hosts in a directory; the settings of the machine itself, set for real and put back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp_gds.errors import TransferError, UnsupportedError
from dcp_gds.hostmem.sysctl import Directive, apply, conf_text, directives, way_back
from tests.filesystems import missing, read_only_mount
from tests.hostmem.vmsettings import DEFAULTS, host_with

GIB = 1 << 30
SMALL, LARGE = 64 * GIB, 2048 * GIB
REAL = Path("/proc/sys/vm")


def by_name(root: Path) -> dict[str, Directive]:
    return {each.name: each for each in directives(root)}


def wrong(root: Path) -> set[str]:
    return {each.name for each in directives(root) if not each.good}


def test_a_small_host_is_advised_in_percent(tmp_path: Path) -> None:
    found = by_name(host_with(tmp_path, ram_bytes=SMALL))
    advised = {name: each.advised for name, each in found.items() if each.advised is not None}
    assert advised == {
        "swappiness": 1,
        "dirty_background_ratio": 5,
        "dirty_ratio": 10,
        "vfs_cache_pressure": 50,
        "zone_reclaim_mode": 0,
    }
    assert found["dirty_ratio"].means == "up to 12.8 GiB"
    assert set(found) == set(DEFAULTS)


def test_a_large_host_is_advised_in_bytes(tmp_path: Path) -> None:
    found = by_name(host_with(tmp_path, ram_bytes=LARGE))
    assert found["dirty_bytes"].advised == 8 * GIB
    assert found["dirty_background_bytes"].advised == 4 * GIB
    assert found["dirty_ratio"].advised is None
    assert "10% of this host would be 204.8 GiB" in found["dirty_bytes"].why
    # The seed's percentages would not do there.
    other = host_with(tmp_path / "b", ram_bytes=LARGE, dirty_ratio=10, dirty_background_ratio=5)
    assert {"dirty_bytes", "dirty_background_bytes"} <= wrong(other)


@pytest.mark.parametrize("ram_bytes", [SMALL, LARGE])
def test_lower_limits_in_bytes_are_good_anywhere(ram_bytes: int, tmp_path: Path) -> None:
    root = host_with(
        tmp_path,
        ram_bytes=ram_bytes,
        dirty_bytes=GIB,
        dirty_background_bytes=GIB // 2,
        dirty_ratio=0,
        dirty_background_ratio=0,
    )
    assert wrong(root) == {"swappiness", "vfs_cache_pressure"}


@pytest.mark.parametrize("ram_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("now", [0, 1, 60, 200])
def test_swappiness_0_is_never_advised(now: int, ram_bytes: int, tmp_path: Path) -> None:
    root = host_with(tmp_path, ram_bytes=ram_bytes, swappiness=now)
    found = by_name(root)["swappiness"]
    assert found.advised == 1
    assert found.good == (now == 1)
    assert ("killed" in found.why) == (now == 0)
    assert "vm.swappiness = 0" not in conf_text(directives(root))


def test_a_kernel_that_lacks_a_setting(tmp_path: Path) -> None:
    root = host_with(tmp_path, ram_bytes=SMALL, zone_reclaim_mode=None)
    found = by_name(root)["zone_reclaim_mode"]
    assert (found.now, found.advised, found.good) == (None, None, True)
    assert "zone_reclaim" not in conf_text(directives(root))


@pytest.mark.parametrize("ram_bytes", [SMALL, LARGE])
def test_applying_makes_all_good_and_a_second_time_nothing(ram_bytes: int, tmp_path: Path) -> None:
    root = host_with(tmp_path, ram_bytes=ram_bytes)
    changes = list(apply(directives(root), root))
    assert len(changes) == 4
    assert wrong(root) == set()
    assert list(apply(directives(root), root)) == []
    back = way_back(changes)
    assert "vm.swappiness=60" in back
    # The kernel would have zeroed the percentage, so that is what has to be set again.
    assert "vm.dirty_ratio=20" in back
    assert "vm.dirty_background_ratio=10" in back
    assert way_back([]) == ""


def test_a_setting_that_cannot_be_written(tmp_path: Path) -> None:
    root = host_with(tmp_path, ram_bytes=SMALL)
    with read_only_mount(root / "proc") as point:
        shown = point.parent / "host"
        shown.mkdir()
        (shown / "proc").symlink_to(point)
        with pytest.raises(TransferError, match="only root may set it") as caught:
            list(apply(directives(shown), shown))
    assert str(caught.value.filename).endswith("dirty_background_ratio")


def test_no_proc(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="proc"):
        directives(tmp_path)


@pytest.fixture
def settings_put_back() -> Iterator[dict[str, str]]:
    """The machine's settings, which are after the test what they were before it."""
    if os.geteuid() != 0 or not os.access(REAL / "swappiness", os.W_OK):
        missing("root on a host whose settings can be written")
    before = {name: (REAL / name).read_text() for name in DEFAULTS if (REAL / name).exists()}
    yield before
    for name, value in before.items():
        # A zero would zero the counterpart, and is there already.
        if int(value) and not name.startswith("zone"):
            (REAL / name).write_text(value)


@pytest.mark.root
def test_the_machine_itself_and_the_way_back(settings_put_back: dict[str, str]) -> None:
    changes = list(apply(directives()))
    assert wrong(Path("/")) == set()
    for change in changes:
        assert int((REAL / change.name).read_text()) == change.value
    if changes:
        for setting in way_back(changes).split()[2:]:
            name, _, value = setting.removeprefix("vm.").partition("=")
            (REAL / name).write_text(value)
    after = {name: (REAL / name).read_text() for name in settings_put_back}
    assert after == settings_put_back


@pytest.mark.root
def test_the_file_is_what_sysctl_takes(tmp_path: Path) -> None:
    root = host_with(tmp_path, ram_bytes=SMALL)
    file = tmp_path / "90-checkpoints.conf"
    file.write_text(conf_text(directives(root)))
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "vm.dirty_background_ratio = 5"
    for line in lines:
        name, _, value = line.partition(" = ")
        assert (REAL / name.removeprefix("vm.")).exists()
        assert value.isdigit()
