"""A node asks once whether GPUDirect Storage works on a directory, and not for ever.

Method: a probe that counts its calls; two `GdsVerdicts` with one place are two processes of a node.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from dcp_gds.errors import TransferError
from dcp_gds.io import gdsverdicts
from dcp_gds.io.gdsprobe import GdsVerdict
from dcp_gds.io.gdsverdicts import VERDICT_LIFE_S, GdsVerdicts


class Probe:
    """Finds a new verdict at each call."""

    def __init__(self) -> None:
        self.calls: list[Path] = []

    def __call__(self, path: Path) -> GdsVerdict:
        self.calls.append(path)
        return GdsVerdict(len(self.calls) % 2 == 1, f"call {len(self.calls)}")


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "place"


def asked(probe: Probe, place: Path, **environment: str) -> GdsVerdicts:
    """As a process of its own would ask."""
    return GdsVerdicts(probe, place=place, environment=environment)


def test_processes_of_a_node_share_a_verdict(probe: Probe, place: Path, tmp_path: Path) -> None:
    first = asked(probe, place)
    assert first(tmp_path) == asked(probe, place)(tmp_path) == GdsVerdict(True, "call 1")
    assert first(tmp_path) == GdsVerdict(True, "call 1")
    assert len(probe.calls) == 1
    assert place.stat().st_mode & 0o777 == 0o700


def test_other_directories_settings_and_reads_are_asked_for(
    probe: Probe, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    asked(probe, place)(tmp_path)
    asked(probe, place)(tmp_path / "other")
    asked(probe, place, KVIKIO_COMPAT_MODE="ON")(tmp_path)
    asked(probe, place, HOME="/")(tmp_path)
    assert len(probe.calls) == 3
    # All files of a directory are as good as one.
    assert asked(probe, place)(tmp_path / "a") == asked(probe, place)(tmp_path / "b")
    assert probe.calls[3:] == [tmp_path / "a"]


@pytest.mark.parametrize("age_s", [VERDICT_LIFE_S, -100.0])
def test_an_old_verdict_is_asked_for_anew(
    probe: Probe, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    kept = asked(probe, place)
    kept(tmp_path)
    (file,) = place.glob("*.json")
    os.utime(file, times=(time.time() - age_s,) * 2)
    assert asked(probe, place)(tmp_path).reason == "call 2"
    later = time.monotonic() + VERDICT_LIFE_S
    assert kept(tmp_path).reason == "call 1"
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kept(tmp_path).reason == "call 2"


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"works": true}'])
def test_a_damaged_verdict_is_asked_for_anew(
    probe: Probe, place: Path, tmp_path: Path, text: str
) -> None:
    asked(probe, place)(tmp_path)
    (file,) = place.glob("*.json")
    file.write_text(text)
    assert asked(probe, place)(tmp_path).reason == "call 2"
    assert asked(probe, place)(tmp_path).reason == "call 2"


@pytest.mark.parametrize("kind", ["file", "link", "open to others"])
def test_a_place_that_others_may_write_to_is_not_used(
    probe: Probe, place: Path, tmp_path: Path, kind: str
) -> None:
    if kind == "file":
        place.touch()
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        place.chmod(0o777)
    kept = asked(probe, place)
    assert kept(tmp_path) == kept(tmp_path) == GdsVerdict(True, "call 1")
    assert asked(probe, place)(tmp_path).reason == "call 2"
    assert list(tmp_path.rglob("*.json")) == []


def test_a_lock_that_is_never_given_back_is_not_waited_for(
    probe: Probe, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(probe, place)(tmp_path)
    (lock,) = place.glob("*.lock")
    monkeypatch.setattr(gdsverdicts, "_WAIT_LIMIT_S", 0.1)
    with lock.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert asked(probe, place)(tmp_path).reason == "call 2"


def test_what_the_probe_raises_is_raised_and_not_kept(place: Path, tmp_path: Path) -> None:
    def fail(path: Path) -> GdsVerdict:
        raise TransferError(errno.EROFS, os.strerror(errno.EROFS), path)

    for _ in range(2):
        with pytest.raises(TransferError):
            GdsVerdicts(fail, place=place)(tmp_path)
    assert list(place.glob("*.json")) == []
