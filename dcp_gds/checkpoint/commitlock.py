"""Commit lock: one process at a time commits into a directory, and removes what is left there."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dcp_gds.errors import TransferError
from dcp_gds.io.fileerror import transfer_error

__all__ = ["commit_lock"]

# NFS turns flock into a lock on a range of bytes, which a directory cannot have; others have none.
_NO_LOCKS = (
    errno.EBADF,
    errno.EINVAL,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)
# A commit takes a few syncs, so hundreds of ranks have had their turn by then.
_WAIT_S = 60.0
_PAUSE_S = 0.01


@contextmanager
def commit_lock(directory: Path, *, wait: bool) -> Iterator[bool]:
    """Lock a directory against other commits; the kernel ends the lock of a process that dies.

    It is advisory and says nothing of a save that is not committing yet: who takes it looks again
    at what may have changed.

    Parameters
    ----------
    wait
        Whether to wait for other ranks that commit by themselves, 60 seconds at most.

    Yields
    ------
    bool
        False if the filesystem has no such locks.

    Raises
    ------
    TransferError
        EWOULDBLOCK if another save is committing; any other errno as the kernel gave it.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _lock_error(error, directory) from error
    try:
        locked = _lock(fd, directory, deadline=time.monotonic() + (_WAIT_S if wait else 0.0))
        try:
            yield locked
        finally:
            # A process that was forked meanwhile has this descriptor too: closing would not do.
            with suppress(OSError):
                if locked:
                    fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        # By then all is done, or has failed for a better reason.
        with suppress(OSError):
            os.close(fd)


def _lock(fd: int, directory: Path, *, deadline: float) -> bool:
    """Take the lock, trying until the deadline; False if there are no locks."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno != errno.EWOULDBLOCK or time.monotonic() >= deadline:
                raise _lock_error(error, directory) from error
            time.sleep(_PAUSE_S)
        else:
            return True


def _lock_error(error: OSError, directory: Path) -> TransferError:
    """An OSError as one of ours, with what it means."""
    if error.errno == errno.EWOULDBLOCK:
        message = (
            "another save is committing into this directory, which two must never do at a time:"
            " give each save its own directory"
        )
        return TransferError(errno.EWOULDBLOCK, message, directory)
    return transfer_error(
        error.errno or errno.EIO, f"cannot lock the directory: {error.strerror}", directory
    )
