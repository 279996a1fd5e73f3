"""File error: the error of this project that says what the kernel did."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dcp_gds.errors import StorageFullError, TransferError

__all__ = ["file_error", "step_error", "transfer_error"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


def transfer_error(
    number: int,
    message: str,
    path: str | os.PathLike[str],
    *,
    offset: int | None = None,
    length: int | None = None,
    done: int | None = None,
) -> TransferError:
    """Return a TransferError; it is a StorageFullError if the errno says so."""
    kind = StorageFullError if number in _FULL else TransferError
    return kind(number, message, path, offset=offset, length=length, done=done)


def file_error(
    error: OSError, path: Path, *, needed: int | None = None, free: int | None = None
) -> TransferError:
    """Return the error of this project that says what `error` says, about `path`."""
    number = error.errno or errno.EIO
    message = (error.strerror or os.strerror(number)) + _inodes_missing(error)
    if number in _FULL:
        return StorageFullError(number, message, path, needed=needed, free=free)
    return TransferError(number, message, path)


def step_error(error: OSError, what: str, path: Path, *, remedy: str = "") -> TransferError:
    """Return the error of a step of a save: "cannot" and `what`, what `error` says, and a remedy.

    It is about `path`, unless `error` names another.
    """
    message = f"cannot {what}: {error.strerror}{_inodes_missing(error)}{remedy}"
    return transfer_error(error.errno or 0, message, error.filename or path)


def _inodes_missing(error: OSError) -> str:
    """What to say when there is room for bytes and none for another file; else empty."""
    # Only a call that takes a name makes a file. XFS has no free inodes when it has no free bytes,
    # and a write that fails then should speak of bytes.
    if error.errno != errno.ENOSPC or error.filename is None:
        return ""
    path = Path(error.filename)
    try:
        room = os.statvfs(path if path.is_dir() else path.parent)
    except OSError:
        return ""
    # Filesystems without a fixed number of inodes have none in all.
    if room.f_favail or not room.f_files:
        return ""
    return ": its filesystem has no free inodes; remove files, or save to another"
