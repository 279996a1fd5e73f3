"""File error: the error of this project that says what the kernel did."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dcp_gds.errors import StorageFullError, TransferError

__all__ = ["file_error", "transfer_error"]

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
    message = error.strerror or os.strerror(number)
    if number in _FULL:
        return StorageFullError(number, message, path, needed=needed, free=free)
    return TransferError(number, message, path)
