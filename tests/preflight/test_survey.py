"""The verdict agrees with what a save then does, and paths are looked at side by side.

Method: real filesystems on which a checkpoint is saved after the check; FUSE mounts whose server
never answers; a probe that waits for the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from dcp_gds import GDSWriter
from dcp_gds.preflight import facts, survey
from dcp_gds.preflight.command import main
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Route, Verdict
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.node import Node
from dcp_gds.preflight.survey import verdicts_on
from tests.filesystems import KINDS, Mounts, read_only_mount
from tests.preflight.test_probe import blocked_mount, fill

STATE = {"weight": torch.arange(300_000, dtype=torch.float32)}


def verdict_on(path: Path) -> Verdict:
    """What gdscheck says here."""
    (verdict,) = verdicts_on([str(path)], write=True, need_bytes=0)
    return verdict


def save(path: Path) -> str:
    """Save a checkpoint, and return the engine that moved its bytes."""
    with GDSWriter(path / "step") as writer:
        dcp_save(STATE, storage_writer=writer, no_dist=True)
        assert writer.report is not None
        return writer.report.engine


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_a_save_takes_the_way_that_was_told(kind: str, mounts: Mounts) -> None:
    path = mounts.directory(kind)
    verdict = verdict_on(path)
    assert list(path.iterdir()) == []
    direct = verdict.route in {Route.DIRECT, Route.STAGED, Route.GDS}
    assert save(path) == ("direct" if direct else "buffered")
    assert verdict.tried


@pytest.mark.root
def test_a_save_fails_where_nothing_can_be_written(tmp_path: Path, mounts: Mounts) -> None:
    full = mounts.directory("ext4")
    fill(full)
    with read_only_mount(tmp_path) as read_only:
        for path in (full, read_only):
            assert verdict_on(path).route is Route.NONE
            with pytest.raises((OSError, CheckpointException)):
                save(path)


@pytest.mark.root
def test_dead_mounts_do_not_keep_a_live_path_from_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts.probe_path, "__kwdefaults__", {"timeout_s": 1.0})
    live = tmp_path / "live"
    live.mkdir()
    before = {child.pid for child in psutil.Process().children()}
    with ExitStack() as stack:
        dead = [stack.enter_context(blocked_mount(tmp_path / f"dead-{n}")) for n in range(3)]
        status = main(["--json", *map(str, dead), str(live)])
        routes = [each["route"] for each in json.loads(capsys.readouterr().out)["verdicts"]]
    assert status == 2
    assert routes[:3] == [Route.NONE] * 3
    assert routes[3] != Route.NONE
    assert {child.pid for child in psutil.Process().children()} <= before


def test_paths_are_probed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4, timeout=60)

    def wait_for_the_others(path: str, *, write: bool) -> Facts:
        together.wait()
        return Facts({}, f"was asked about {path}, write {write}")

    monkeypatch.setattr(survey, "probe_path", wait_for_the_others)
    paths = [f"/path/{number}" for number in range(4)]
    verdicts = verdicts_on(paths, write=False, need_bytes=0)
    assert [verdict.reason for verdict in verdicts] == [
        f"{path} was asked about {path}, write False" for path in paths
    ]


def test_cufile_is_tried_where_there_is_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(path: str, **options: object) -> Facts:
        asked.append((path, options))
        return Facts({"wrote": True, "read": True})

    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/libcufile.so.0").write_text("")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/cufile.json").write_text('{"properties": {"use_pci_p2pdma": true}}')
    node = Node(Host(tmp_path), {"LD_LIBRARY_PATH": "/opt"})
    monkeypatch.setattr(survey, "find_node", lambda: node)
    monkeypatch.setattr(survey, "ask_cufile", answer)
    monkeypatch.setattr(survey, "probe_path", lambda path, write: Facts({"direct": True}))
    (verdict,) = verdicts_on(["/data"], write=True, need_bytes=0)
    options = {"library": "/opt/libcufile.so.0", "properties": {"use_pci_p2pdma": True}}
    assert asked == [("/data", options)]
    assert (verdict.route, verdict.tried) == (Route.GDS, True)


@pytest.mark.parametrize("name", [b"a b\tc", b"new\nline", b"\xff\xfe \x1b[31m"])
def test_a_directory_of_any_name_gets_its_verdict(
    name: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(name)
    path.mkdir()
    assert main([str(path)]) in {0, 1}
    out = capsys.readouterr().out
    assert "\x1b" not in out
    # One line for the verdict, however the path is called.
    assert str(Route.NONE) not in out.splitlines()[0]
    assert out.splitlines()[1].startswith("  because ")
    main(["--json", str(path)])
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["path"] == str(path)


AS_NOBODY = """
import ctypes, json, os, sys
from dcp_gds.preflight import probe
# What it imports later, it can import now only.
probe.main("/", write=False)
os.setgroups([]), os.setgid(65534), os.setuid(65534)
# PR_SET_DUMPABLE: who has given up rights may not look into /proc/self otherwise.
ctypes.CDLL(None).prctl(4, 1)
print(json.dumps(probe.main(sys.argv[1], write=True)))
"""


@pytest.mark.root
def test_a_user_without_permission_is_told() -> None:
    # Root may do everything: somebody else has to look, from a place that everybody may enter.
    with tempfile.TemporaryDirectory() as directory:
        closed = Path(directory, "closed")
        for path in (Path(directory), closed):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        assert look_as_nobody(closed)["write_error"] == "Permission denied"
        closed.chmod(0)
        seen = look_as_nobody(closed / "inside")
        assert (seen["error"], seen["parent"]) == ("Permission denied", str(closed))


def look_as_nobody(path: Path) -> dict[str, object]:
    """What the probe prints for a user without rights."""
    command = [sys.executable, "-c", AS_NOBODY, str(path)]
    done = subprocess.run(command, capture_output=True, check=True)
    seen: dict[str, object] = json.loads(done.stdout)
    return seen
