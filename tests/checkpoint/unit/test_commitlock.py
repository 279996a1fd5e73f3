"""One commit at a time: the lock is taken by a second descriptor, as another process would."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcp_gds.checkpoint import commitlock
from dcp_gds.checkpoint.commitlock import commit_lock
from dcp_gds.errors import TransferError


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def is_free(directory: Path) -> bool:
    with opened(directory) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_it_is_held_for_the_block(tmp_path: Path) -> None:
    before = open_descriptors()
    with commit_lock(tmp_path, wait=False) as locked:
        assert locked
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    assert open_descriptors() == before


def test_a_forked_process_does_not_keep_it(tmp_path: Path) -> None:
    with commit_lock(tmp_path, wait=False):
        # What fork does to descriptors: another number for the same open directory.
        (fd,) = [
            int(entry.name)
            for entry in Path("/proc/self/fd").iterdir()
            if entry.exists() and entry.resolve() == tmp_path.resolve()
        ]
        inherited = os.dup(fd)
    assert is_free(tmp_path)
    os.close(inherited)


@pytest.mark.parametrize("wait", [False, True])
def test_taken_is_an_error(tmp_path: Path, wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlock, "_WAIT_S", 0.02)
    before = open_descriptors()
    with opened(tmp_path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with (
            pytest.raises(TransferError, match="another save is committing") as info,
            commit_lock(tmp_path, wait=wait),
        ):
            pytest.fail("the lock was taken twice")
    assert (info.value.errno, info.value.filename) == (errno.EWOULDBLOCK, str(tmp_path))
    assert open_descriptors() == before


def test_a_rank_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        # The other rank is done during the first pause.
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(fd, fcntl.LOCK_UN))
        with commit_lock(tmp_path, wait=True) as locked:
            assert locked


@pytest.mark.parametrize(
    "number", [errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP]
)
def test_without_locks_it_says_so(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with commit_lock(tmp_path, wait=False) as locked:
        assert not locked


def test_other_errors_keep_errno_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransferError) as info, commit_lock(tmp_path / "missing", wait=False):
        pytest.fail("a missing directory was locked")
    assert (info.value.errno, info.value.filename) == (errno.ENOENT, str(tmp_path / "missing"))

    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(TransferError) as info, commit_lock(tmp_path, wait=False):
        pytest.fail("a failing lock was taken")
    assert (info.value.errno, info.value.filename) == (errno.EIO, str(tmp_path))
