"""A writer gives the reasons that gdscheck gives, in the same words.

Method: the fixture hosts, with the mount of a real directory written into their mountinfo.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dcp_gds.preflight.finding import Finding, Route, Status
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.node import Node
from dcp_gds.preflight.probe import look
from dcp_gds.preflight.shortform import findings_for, sentence
from tests.preflight.test_hosts import HOSTS, verdict_on
from tests.preflight.trees import FixtureHost, build

STAGED = [host for host in HOSTS if host.route is Route.STAGED and host.cufile is None]


@pytest.mark.parametrize("host", STAGED, ids=lambda host: host.name)
def test_the_first_reason_is_the_verdicts(host: FixtureHost, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    root = build(host, tmp_path / "host")
    mountinfo = root / "proc/self/mountinfo"
    # The last line is that of /data: the real directory's mount takes its place.
    mine = str(look(str(target))["mount_id"])
    *others, last = mountinfo.read_text().splitlines()
    others = [line for line in others if line.split()[0] != mine]
    mountinfo.write_text("\n".join([*others, " ".join([mine, *last.split(" ")[1:]])]))
    found = findings_for(str(target), node=host.node(root))
    assert found[0].observed == verdict_on(host, root).reason
    assert host.cause in sentence(found[0])


def test_without_a_gpu_nothing_else_is_said(tmp_path: Path) -> None:
    found = findings_for(str(tmp_path), node=Node(Host(tmp_path)))
    assert [(each.check, each.status) for each in found] == [("driver", Status.SKIP)]
    assert sentence(found[0]) == "no NVIDIA driver"


def test_this_machine_has_an_answer_that_names_no_file_of_ours(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    found = findings_for(str(tmp_path))
    assert all(each.check and each.observed for each in found)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_directory_that_is_not_there_raises() -> None:
    with pytest.raises(FileNotFoundError):
        findings_for("/no/such/directory")


def test_a_sentence_has_observation_expectation_and_remedy() -> None:
    finding = Finding("swap", Status.WARN, "swap is on", "no swap", "swapoff -a")
    assert sentence(finding) == "swap is on (expected: no swap); swapoff -a"
