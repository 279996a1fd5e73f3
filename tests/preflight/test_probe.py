"""A probe says what a save then does, however it ends, and leaves nothing behind.

Method: real filesystems, where the verdict is compared with what the writer selects; programs that
hang, abort and die in a probe's place.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dcp_gds.errors import TransferError
from dcp_gds.io.engine import EngineName
from dcp_gds.io.selection import select_for_save
from dcp_gds.preflight.check import check_path
from dcp_gds.preflight.facts import Facts, probe_path, run_child
from dcp_gds.preflight.finding import Route
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.node import Node
from tests.filesystems import KINDS, Mounts, missing, read_only_mount

# linux/fs.h: MNT_DETACH.
LAZY = 2


def route_to(path: Path) -> Route:
    """The verdict on a path here, where no GPU is looked for."""
    facts = probe_path(str(path), write=True)
    return check_path(str(path), Node(Host()), facts).route


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_verdict_agrees_with_what_a_save_selects(kind: str, mounts: Mounts) -> None:
    directory = mounts.directory(kind)
    direct = route_to(directory) not in (Route.BUFFERED, Route.NONE)
    assert list(directory.iterdir()) == []
    selected = select_for_save(directory, requested="auto").engine
    assert direct == (selected is EngineName.DIRECT)


@pytest.mark.root
def test_read_only_directory_is_said_to_be_one(tmp_path: Path) -> None:
    with read_only_mount(tmp_path) as path:
        assert route_to(path) is Route.NONE
        with pytest.raises(TransferError):
            select_for_save(path, requested="auto")


def fill(directory: Path) -> None:
    """Take all the room there is."""
    free = shutil.disk_usage(directory).free
    # The last blocks of the filesystem are its own: take what is left in ever smaller pieces.
    for number, length in enumerate((free - (1 << 20), *[4096] * 300)):
        with suppress(OSError), (directory / f"ballast-{number}").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, length)


@pytest.mark.root
def test_full_disk_is_said_to_be_one(mounts: Mounts) -> None:
    directory = mounts.directory("ext4")
    fill(directory)
    with pytest.raises(TransferError):
        select_for_save(directory, requested="auto")
    assert route_to(directory) is Route.NONE


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import signal; signal.pause()", "did not answer within 0.5 s"),
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGFPE)", "was ended by SIGFPE"),
        ("raise SystemExit(3)", "ended with status 3 and no answer"),
        ("print('{')", "ended with status 0 and no answer"),
    ],
)
def test_a_probe_that_dies_is_a_finding(code: str, failure: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(code)
    program = SimpleNamespace(__file__=str(tmp_path / "program.py"))
    facts = run_child(program, timeout_s=0.5 if "pause" in code else 20.0)
    assert facts == Facts({}, failure)
    verdict = check_path("/data", Node(Host()), facts)
    assert verdict.route is Route.NONE
    assert failure in verdict.reason


@contextmanager
def blocked_mount(point: Path) -> Iterator[Path]:
    """A FUSE filesystem whose server never answers."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        missing("root and /dev/fuse")
    libc = ctypes.CDLL(None, use_errno=True)
    point.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"fuse", os.fsencode(point), b"fuse", 0, options) != 0:
            missing(f"a kernel that mounts FUSE: {os.strerror(ctypes.get_errno())}")
        try:
            yield point
        finally:
            libc.umount2(os.fsencode(point), LAZY)
    finally:
        # Without a server the kernel ends whoever waits for it.
        os.close(server)


@pytest.mark.root
def test_a_mount_that_does_not_answer_is_a_finding_and_leaves_no_process(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with blocked_mount(tmp_path / "mount") as path:
        facts = probe_path(str(path), write=True, timeout_s=0.5)
        verdict = check_path(str(path), Node(Host()), facts)
    assert verdict.route is Route.NONE
    assert "did not answer within 0.5 s" in verdict.reason
    assert {child.pid for child in psutil.Process().children()} <= before
