"""Shard file: an open file of a checkpoint, and what the kernel demands of transfers with it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from dcp_gds.errors import TransferError
from dcp_gds.io.advice import advise
from dcp_gds.io.direct import dio_alignment, preallocate
from dcp_gds.io.fileerror import file_error

__all__ = [
    "ALIGNMENT_MIN",
    "ShardFile",
    "create_shard_file",
    "open_shard_file",
    "remove_file",
]

# Many files accept 512, but writes that share a 4 KiB filesystem block are a fifth slower.
ALIGNMENT_MIN = 4096


class ShardFile:
    """An open file, closed by `close` or at the end of a `with` block.

    Parameters
    ----------
    path
        Where the file was opened; errors name it.
    fd
        Its descriptor, which this object now owns.
    direct
        Whether it was opened with O_DIRECT.
    alignment
        Offset and length of a write are multiples of it, a power of two; 1 if the file takes any.
    """

    def __init__(self, path: Path, fd: int, *, direct: bool, alignment: int) -> None:
        self._path = path
        self._fd = fd
        self._direct = direct
        self._alignment = alignment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except TransferError:
            # What ended the block went wrong first, and closing may fail for the same reason.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"ShardFile({str(self._path)!r}, fd={self._fd}, alignment={self._alignment})"

    @property
    def path(self) -> Path:
        """Where the file was opened."""
        return self._path

    @property
    def fd(self) -> int:
        """The descriptor; -1 once the file is closed, so that late use cannot hit another file."""
        return self._fd

    @property
    def direct(self) -> bool:
        """Whether transfers go past the page cache."""
        return self._direct

    @property
    def alignment(self) -> int:
        """Offset and length of a write are multiples of it, in bytes."""
        return self._alignment

    def allocate(self, length: int) -> bool:
        """Give the file its length and the blocks for it, so that a full disk is found at once.

        Returns
        -------
        bool
            False if the filesystem cannot preallocate: there is room now and the length is set, but
            the blocks are not taken.

        Raises
        ------
        StorageFullError
            If there is too little room. Blocks that the kernel had taken by then, and kept, are
            given back first, so `free` is what the next attempt will find. It is None for a quota,
            whose rest is not known.
        TransferError
            For any other reason.
        """
        assert length > 0
        try:
            if self._preallocate(length):
                return True
            self._check_room(length)
            os.ftruncate(self._fd, length)
        except OSError as error:
            free = None
            if error.errno == errno.ENOSPC:
                with contextlib.suppress(OSError):
                    free = self._free_bytes()
            raise file_error(error, self._path, needed=length, free=free) from error
        return False

    def truncate(self, length: int) -> None:
        """Cut the file to its final length in bytes.

        Raises
        ------
        TransferError
            If the kernel refuses.
        """
        try:
            os.ftruncate(self._fd, length)
        except OSError as error:
            raise file_error(error, self._path) from error

    def sync(self) -> None:
        """Wait until data and length are on the drive, then take the file out of the page cache.

        What is left there by then is clean: the end of a buffered write's window, or the last
        block, which the kernel padded when it cut the file.

        Raises
        ------
        TransferError
            If the kernel could not write something, now or since the last sync.
        """
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise file_error(error, self._path) from error
        advise(self._fd, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file; nothing happens if it is closed already.

        Raises
        ------
        TransferError
            If the kernel reports a failed write only now, as network filesystems do.
        """
        fd, self._fd = self._fd, -1
        if fd == -1:
            return
        try:
            os.close(fd)
        except OSError as error:
            raise file_error(error, self._path) from error

    def _preallocate(self, length: int) -> bool:
        """Preallocate all or nothing."""
        before = os.fstat(self._fd).st_size
        try:
            return preallocate(self._fd, length=length)
        except OSError:
            # Also where the length is unchanged this frees what lies behind the end of the file.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, before)
            raise

    def _check_room(self, length: int) -> None:
        """Raise ENOSPC, as preallocation would, if there is less room than that."""
        # ramfs has no size, and says that it has no blocks at all.
        if os.fstatvfs(self._fd).f_blocks and self._free_bytes() < length:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _free_bytes(self) -> int:
        """Bytes that an unprivileged user may still take."""
        room = os.fstatvfs(self._fd)
        return room.f_bavail * room.f_frsize


def create_shard_file(path: Path, *, direct: bool) -> ShardFile:
    """Create a file that was not there and open it for reading and writing.

    Raises
    ------
    TransferError
        If it cannot be created: EEXIST when the path exists, a symbolic link included, EINVAL when
        `direct` is asked of a filesystem that refuses O_DIRECT. No file is left behind.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o666)
    except OSError as error:
        if error.errno == errno.EINVAL:
            # Linux creates the file before it refuses O_DIRECT; an older file is EEXIST.
            remove_file(path)
        raise file_error(error, path) from error
    try:
        return _shard_file(path, fd, direct=direct)
    except TransferError:
        remove_file(path)
        raise


def open_shard_file(path: Path, *, direct: bool) -> ShardFile:
    """Open a file for reading.

    Raises
    ------
    TransferError
        If it cannot be opened: ELOOP when it is a symbolic link, EINVAL when it is no regular file,
        or when `direct` is asked of a filesystem that refuses O_DIRECT.
    """
    # Opening a FIFO would wait for a writer; regular files ignore O_NONBLOCK.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | (os.O_DIRECT if direct else 0))
    except OSError as error:
        raise file_error(error, path) from error
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError as error:
        os.close(fd)
        raise file_error(error, path) from error
    if not regular:
        os.close(fd)
        raise TransferError(errno.EINVAL, "not a regular file", path)
    return _shard_file(path, fd, direct=direct)


def remove_file(path: Path) -> None:
    """Remove a file of ours after a failure, which is what the caller goes on to report.

    Where the kernel refuses even this, the file stays, named by nothing.
    """
    with contextlib.suppress(OSError):
        path.unlink()


def _shard_file(path: Path, fd: int, *, direct: bool) -> ShardFile:
    """Wrap a descriptor."""
    if not direct:
        return ShardFile(path, fd, direct=False, alignment=1)
    try:
        memory, offset = dio_alignment(fd) or (0, 0)
    except OSError as error:
        os.close(fd)
        raise file_error(error, path) from error
    return ShardFile(path, fd, direct=True, alignment=max(ALIGNMENT_MIN, memory, offset))
