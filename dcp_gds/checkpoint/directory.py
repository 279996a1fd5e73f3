"""Directory of a checkpoint: made level by level, each name durable before the next is begun.

A directory that is there need not be there after a power cut: a save that was killed may have made
it a moment ago, or the trainer. So the parent of what is found is synced too.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from dcp_gds.errors import TransferError
from dcp_gds.io.fileerror import step_error

__all__ = ["create_directory", "sync_directory"]

# The parent of a directory that is there belongs to somebody else, often enough: it may not be
# read, and only what can be opened can be synced. And not every filesystem syncs directories: that
# of an automounter's mount points does not.
_NOT_SYNCED = (errno.EACCES, errno.EPERM, errno.EINVAL)


def create_directory(directory: Path, *, sync: bool) -> str:
    """Create a directory and its missing parents; with `sync`, make their names durable.

    Each level is synced before the next is made. So however a save is killed, at most the deepest
    directory that the next one finds is not durable, and its parent is synced here once more.

    Returns
    -------
    Empty; or one sentence when the parent of what was there already may not be read or cannot be
    synced. That is no error: nearly always the directory has been durable for long, and failing
    would shut out everybody whose directory lies in one that they may not read. `syncfs` could
    make up for it, but writes back what all others have in the page cache, without a bound.

    Raises
    ------
    TransferError
        With errno and path. A directory that could not be made durable for lack of permission is
        not made.
    """
    missing = []
    there = directory
    try:
        while not there.is_dir() and there != there.parent:
            missing.append(there)
            there = there.parent
    except OSError as error:
        raise step_error(error, "create the checkpoint's directory", directory) from error
    unsynced_reason = _sync_name(there) if sync else ""
    for path in reversed(missing):
        # Another rank may make it at the same moment: syncing its parent twice does no harm.
        if sync:
            _make_durably(path)
        else:
            _make(path)
    return unsynced_reason


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable.

    Raises
    ------
    TransferError
        With errno and path.
    """
    with _opened(directory) as fd:
        _sync(fd, directory)


def _sync_name(directory: Path) -> str:
    """Sync the parent of a directory that is there; why that cannot be done, or empty."""
    # What lies in it is lost with the directory's own name, not with that of a link to it.
    parent = Path(os.path.realpath(directory)).parent
    try:
        sync_directory(parent)
    except TransferError as error:
        if error.errno not in _NOT_SYNCED:
            raise
        return (
            f"{parent} could not be synced ({os.strerror(error.errno)}): if {directory} was made"
            " shortly before this save, a power cut may lose it and all that is in it;"
            f" `sync -f {directory}`, run once, makes it durable"
        )
    return ""


def _make_durably(path: Path) -> None:
    """Make a directory and sync its parent."""
    # The parent is opened first: where it may not be read, nothing is made.
    with _opened(path.parent) as parent:
        _make(path)
        _sync(parent, path.parent)


def _make(path: Path) -> None:
    """Make a directory, unless it is there."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise step_error(error, "create the checkpoint's directory", path) from error


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Open a directory to sync it."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        remedy = ""
        if error.errno in (errno.EACCES, errno.EPERM):
            remedy = (
                ": to sync it, it has to be readable; make the checkpoint's directory before the"
                " save, or save with sync=False, and a power cut may lose it"
            )
        raise step_error(
            error, "open the directory to sync it", directory, remedy=remedy
        ) from error
    try:
        yield fd
    finally:
        # Closing what was only read tells nothing of the sync, which has been done.
        with contextlib.suppress(OSError):
            os.close(fd)


def _sync(fd: int, directory: Path) -> None:
    """Sync an open directory."""
    try:
        os.fsync(fd)
    except OSError as error:
        remedy = ""
        if error.errno == errno.EINVAL:
            remedy = (
                ": its filesystem does not sync directories; save to another, or with sync=False,"
                " and a power cut may lose the checkpoint"
            )
        raise step_error(error, "sync the directory", directory, remedy=remedy) from error
