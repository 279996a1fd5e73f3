"""Each known host gets its verdict, and the one right cause on top.

Method: trees of /proc, /sys and /etc as other machines have them (`tests/preflight/hosts.py`), with
what a probe saw of the path; then the same trees with files that are missing, garbled or huge.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dcp_gds.preflight.check import check_path
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Status, Verdict
from dcp_gds.preflight.host import READ_BYTES_MAX
from tests.preflight.cufilehosts import CUFILE_HOSTS
from tests.preflight.drivehosts import DRIVE_HOSTS
from tests.preflight.hosts import LOCAL_HOSTS
from tests.preflight.trees import FixtureHost, build

HOSTS = (*LOCAL_HOSTS, *CUFILE_HOSTS, *DRIVE_HOSTS)
HEALTHY = HOSTS[0]
GARBAGE = {
    "missing": None,
    "empty": b"",
    "binary": b"\0\xff" * 64,
    "words": b"no such \xff thing\n - \n:::\n" * 9,
    "huge": b"1" * (READ_BYTES_MAX + 1),
}


def verdict_on(host: FixtureHost, root: Path) -> Verdict:
    """Check /data on a host."""
    return check_path(
        "/data", host.node(root), Facts(host.facts), cufile=host.cufile, smart=host.smart
    )


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_each_host_gets_its_verdict_and_cause(host: FixtureHost, tmp_path: Path) -> None:
    verdict = verdict_on(host, build(host, tmp_path))
    assert verdict.route is host.route, verdict
    grave = [each for each in verdict.findings if each.status in (Status.FAIL, Status.WARN)]
    if host.top == "ok":
        assert grave == []
    else:
        assert grave[0].check == host.top, grave
        assert host.cause in grave[0].observed
        assert grave[0].remedy
        assert grave[0].expected


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize(
    "name",
    [
        "proc/self/mountinfo",
        "proc/self/limits",
        "proc/self/cgroup",
        "proc/swaps",
        "proc/sys/vm/swappiness",
        "proc/driver/nvidia/version",
        "etc/cufile.json",
    ],
)
def test_a_file_that_cannot_be_used_never_raises(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    build(HEALTHY, tmp_path)
    (tmp_path / "etc").mkdir()
    if content is None:
        (tmp_path / name).unlink(missing_ok=True)
    else:
        (tmp_path / name).write_bytes(content)
    verdict = verdict_on(HEALTHY, tmp_path)
    assert verdict.findings
    for finding in verdict.findings:
        assert finding.status is not Status.SKIP or finding.observed


def test_thousands_of_mounts_are_read(tmp_path: Path) -> None:
    build(HEALTHY, tmp_path)
    file = tmp_path / "proc/self/mountinfo"
    more = "\n".join(f"{n} 1 0:{n} / /m/{n} rw - tmpfs tmpfs rw" for n in range(100, 9000))
    file.write_text(f"{file.read_text()}\n{more}")
    assert verdict_on(HEALTHY, tmp_path).route is HEALTHY.route


def test_devices_in_a_circle_end(tmp_path: Path) -> None:
    build(HEALTHY, tmp_path)
    place = tmp_path / "sys/class/block/nvme0n1/slaves"
    (place / "nvme0n1p1").mkdir(parents=True)
    assert verdict_on(HEALTHY, tmp_path).route is HEALTHY.route
