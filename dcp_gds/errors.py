"""Errors: everything dcp_gds raises on purpose, as one tree.

Every class survives pickling, because DCP gathers the errors of all ranks through pickle: arguments
are positional or have defaults, and further facts are plain attributes.
"""

from __future__ import annotations

import errno as _errno
import os

__all__ = [
    "CheckpointExistsError",
    "ConfigError",
    "CorruptCheckpointError",
    "DcpGdsError",
    "NotCommittedError",
    "StorageFullError",
    "TransferError",
    "UnsupportedError",
]


class DcpGdsError(Exception):
    """Base of all errors that dcp_gds raises on purpose."""


class ConfigError(DcpGdsError, ValueError):
    """An option has a wrong value; raised before any I/O."""


class UnsupportedError(DcpGdsError):
    """A demanded path cannot run, or a value cannot be saved without losing something."""


class TransferError(DcpGdsError, OSError):
    """Reading or writing an extent of a file failed.

    Parameters
    ----------
    errno, strerror, filename
        As in `OSError`.
    offset, length
        The extent that was asked for, in bytes of the file.
    done
        Bytes of it that were transferred before the failure.
    """

    def __init__(
        self,
        errno: int,
        strerror: str,
        filename: str | os.PathLike[str],
        *,
        offset: int | None = None,
        length: int | None = None,
        done: int | None = None,
    ) -> None:
        super().__init__(errno, strerror, os.fspath(filename))
        self.offset = offset
        self.length = length
        self.done = done

    def __str__(self) -> str:
        text = super().__str__()
        if self.offset is not None:
            text += f", bytes [{self.offset}, {self.offset + (self.length or 0)})"
        if self.done is not None:
            text += f", {self.done} done"
        return text


class StorageFullError(TransferError):
    """The filesystem or a quota has too little room for the save.

    Parameters
    ----------
    needed, free
        Bytes that the save asked for, and bytes that were free for this user at that moment; None
        for a quota, whose rest the kernel does not tell, and where the room ran out later.
    offset, length, done
        As in `TransferError`.
    """

    def __init__(
        self,
        errno: int,
        strerror: str,
        filename: str | os.PathLike[str],
        *,
        needed: int | None = None,
        free: int | None = None,
        offset: int | None = None,
        length: int | None = None,
        done: int | None = None,
    ) -> None:
        super().__init__(errno, strerror, filename, offset=offset, length=length, done=done)
        self.needed = needed
        self.free = free

    def __str__(self) -> str:
        text = super().__str__()
        if self.needed is not None:
            free = "unknown" if self.free is None else f"{self.free} bytes"
            text += f"; needed {self.needed} bytes, free {free}"
        return text


class CheckpointExistsError(DcpGdsError, FileExistsError):
    """The directory holds a committed checkpoint, and overwriting was not asked for."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        message: str = "a committed checkpoint is there; pass overwrite=True to replace it",
    ) -> None:
        super().__init__(_errno.EEXIST, message, os.fspath(path))

    def __reduce__(self) -> tuple[type[CheckpointExistsError], tuple[str, str]]:
        return type(self), (str(self.filename), str(self.strerror))


class NotCommittedError(DcpGdsError, FileNotFoundError):
    """The directory holds no committed checkpoint: there is no `.metadata`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        message: str = "no committed checkpoint: .metadata is missing",
    ) -> None:
        super().__init__(_errno.ENOENT, message, os.fspath(path))

    def __reduce__(self) -> tuple[type[NotCommittedError], tuple[str, str]]:
        return type(self), (str(self.filename), str(self.strerror))


class CorruptCheckpointError(DcpGdsError):
    """An extent, a length or a checksum disagrees with what was committed.

    Parameters
    ----------
    message
        What disagrees, observed against expected.
    path, offset
        File and byte offset in it, where known.
    fqn
        The item's fully qualified name, where known.
    """

    def __init__(
        self,
        message: str,
        path: str | os.PathLike[str] | None = None,
        *,
        offset: int | None = None,
        fqn: str | None = None,
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        super().__init__(message, self.path)
        self.offset = offset
        self.fqn = fqn

    def __str__(self) -> str:
        text = str(self.args[0])
        if self.fqn is not None:
            text = f"{self.fqn}: {text}"
        if self.path is not None:
            text += f" [{self.path}"
            text += "]" if self.offset is None else f", offset {self.offset}]"
        return text
