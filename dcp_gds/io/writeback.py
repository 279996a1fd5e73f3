"""Dirty window: bounds what the buffered writes of one file leave in the page cache."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dcp_gds.format.extent import Extent, round_down, round_up
from dcp_gds.io.advice import advise
from dcp_gds.io.fileerror import transfer_error
from dcp_gds.io.shardfile import ShardFile

__all__ = ["DirtyWindow", "drop_cached"]

# sync_file_range(2)
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
# linux/magic.h
_OVERLAYFS_SUPER_MAGIC = 0x794C7630
# A kernel without the call, and a container that forbids it.
_UNAVAILABLE = (errno.ENOSYS, errno.EPERM)

# Folios of the page cache begin at a multiple of their length in the file, and are no longer than a
# huge page (x86-64).
_FOLIO_BYTES_MAX = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class DirtyWindow:
    """Starts the write-back of what was written, waits for the oldest of it, and drops that.

    May be used from several threads. The file has to be open during every call.

    Parameters
    ----------
    bytes_max
        Most bytes of the page cache that are being written, dirty, or under write-back: extents
        count with all folios that they touch. At least what all threads write at one time, so that
        waiting for the ranges already written makes room for one more.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ranges: deque[Extent] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def writing(self, file: ShardFile, extent: Extent) -> Iterator[None]:
        """Make room for an extent, let it be written inside the `with`, then start its write-back.

        Raises
        ------
        TransferError
            If the kernel failed to write an older range of the file. It tells this once: a later
            sync would succeed, so whoever gets the error must not take the file for good.
        """
        held = _rounded_out(extent).length
        with self._lock:
            while self._bytes + held > self._bytes_max:
                self._settle_oldest(file)
            self._bytes += held
        try:
            yield
            _sync_range(file.fd, extent, flags=_WRITE)
        except BaseException:
            with self._lock:
                self._bytes -= held
            raise
        with self._lock:
            self._ranges.append(extent)

    def _settle_oldest(self, file: ShardFile) -> None:
        """Wait until the oldest range is on the drive, or all if need be, and drop it."""
        oldest = self._ranges[0]
        try:
            alone = _sync_range(file.fd, oldest, flags=_WAIT_BEFORE | _WRITE | _WAIT_AFTER)
            if not alone:
                os.fdatasync(file.fd)
            settled = [oldest] if alone else list(self._ranges)
            for extent in settled:
                self._ranges.popleft()
                self._bytes -= _rounded_out(extent).length
                drop_cached(file.fd, extent)
        except OSError as error:
            raise transfer_error(
                error.errno or errno.EIO,
                f"write-back failed: {error.strerror}",
                file.path,
                offset=oldest.offset,
                length=oldest.length,
            ) from error


def drop_cached(fd: int, extent: Extent) -> None:
    """Drop the clean pages of a range from the page cache.

    The kernel leaves a folio (pages that it keeps together) that is only partly in the range, so
    the range is rounded out: the folio that two ranges share then goes with whichever is dropped
    last.
    """
    folios = _rounded_out(extent)
    advise(fd, os.POSIX_FADV_DONTNEED, offset=folios.offset, length=folios.length)


def _rounded_out(extent: Extent) -> Extent:
    """The longest folios that an extent can touch."""
    offset = round_down(extent.offset, alignment=_FOLIO_BYTES_MAX)
    return Extent(offset, round_up(extent.end, alignment=_FOLIO_BYTES_MAX) - offset)


def _sync_range(fd: int, extent: Extent, *, flags: int) -> bool:
    """Call sync_file_range; False where it does not exist or would do nothing."""
    # Overlay accepts the call, returns 0 and writes nothing: the pages belong to the file below it.
    function = getattr(_libc, "sync_file_range", None)
    if function is None or _filesystem_magic(fd) == _OVERLAYFS_SUPER_MAGIC:
        return False
    offset, length = ctypes.c_int64(extent.offset), ctypes.c_int64(extent.length)
    while function(fd, offset, length, ctypes.c_uint(flags)) == -1:
        number = ctypes.get_errno()
        if number in _UNAVAILABLE:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def _filesystem_magic(fd: int) -> int:
    """The `f_type` of fstatfs(2), its first field; 0 if it cannot be had."""
    buffer = (ctypes.c_long * 64)()
    _libc.fstatfs(fd, buffer)
    return buffer[0]
