"""Buffered engine: pread and pwrite through the page cache, of which it leaves little behind.

For filesystems without direct I/O, and the reference that the other engines are compared with:
plain Python, with zlib's CRC-32.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from dcp_gds.errors import TransferError
from dcp_gds.format.extent import Extent, round_down
from dcp_gds.io.advice import advise
from dcp_gds.io.engine import Completion, EngineName, Operation, Transfer
from dcp_gds.io.fileerror import transfer_error
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.workers import Workers
from dcp_gds.io.writeback import DirtyWindow, drop_cached

__all__ = ["WINDOW_BYTES", "BufferedEngine"]

# A quarter of a second's writing for a slow disk, so that it never idles, and little enough that
# neither a small memory cgroup nor the kernel's own dirty limits notice it.
WINDOW_BYTES = 32 << 20
# Small beside the window, so that most of it is under write-back while the next pieces are copied.
_PIECE_BYTES = 4 << 20
# One thread would stop copying for every checksum; more than a few wait for the file's lock.
_WORKERS_MAX = 4
# What a network filesystem may say once and not again; the pause grows by 5 ms each time. The
# kernel has tried for seconds before it says EIO, so more than a few would only put off the error.
# A failed write-back, which sync_file_range and fdatasync tell, is never tried again: the kernel
# tells it once, then takes the pages for clean, and a second call would succeed without the data.
_MAY_PASS = (errno.EIO, errno.EAGAIN)
_ERROR_RETRIES_MAX = 3
_ERROR_PAUSE_S = 0.005

_PYBUF_WRITE = 0x200
_memory_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


@dataclass(slots=True)
class _Progress:
    """How far a transfer has come."""

    done: int = 0
    crc32: int = 0
    retries: int = 0
    errors: int = 0


class BufferedEngine:
    """An `Engine` of a few threads; `close` ends them.

    It counts as retries short transfers, EAGAIN and EIO; EINTR is resumed by Python, uncounted.

    Parameters
    ----------
    queue_depth
        Most transfers in flight.
    """

    def __init__(self, *, queue_depth: int) -> None:
        threads = min(queue_depth, _WORKERS_MAX)
        self._workers = Workers(name="buffered", threads=threads, queue_depth=queue_depth)
        self._windows: WeakKeyDictionary[ShardFile, DirtyWindow] = WeakKeyDictionary()

    @property
    def name(self) -> EngineName:
        """`EngineName.BUFFERED`."""
        return EngineName.BUFFERED

    @property
    def queue_depth(self) -> int:
        """Most transfers in flight."""
        return self._workers.queue_depth

    @property
    def in_flight(self) -> int:
        """Transfers submitted and not yet reaped."""
        return self._workers.in_flight

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer and return at once.

        Raises
        ------
        RuntimeError
            If `queue_depth` transfers are in flight, or the engine is closed.
        """
        window = self._windows.setdefault(transfer.file, DirtyWindow(bytes_max=WINDOW_BYTES))
        self._workers.submit(partial(_carry_out, transfer, window))

    def reap(self) -> list[Completion]:
        """Wait for at least one completion and return all that are there."""
        return self._workers.reap()

    def drain(self) -> list[Completion]:
        """Wait until nothing is in flight and return what had not been reaped."""
        return self._workers.drain()

    def close(self) -> None:
        """Drain, discard, and end the threads."""
        self._workers.close()


def _carry_out(transfer: Transfer, window: DirtyWindow) -> Completion:
    """Do one transfer, on a thread of the engine."""
    progress = _Progress()
    error = None
    try:
        if transfer.operation is Operation.READ:
            # No read-ahead: it fetches what another thread has read and dropped already, and nobody
            # drops it again. With several threads it gains nothing.
            advise(transfer.file.fd, os.POSIX_FADV_RANDOM)
        for extent, memory in _pieces(transfer):
            if transfer.operation is Operation.WRITE:
                _write_piece(transfer, extent, memory, progress, window)
            else:
                _read_piece(transfer, extent, memory, progress)
    except TransferError as failure:
        error = failure
    except OSError as failure:
        error = transfer_error(
            failure.errno or errno.EIO,
            failure.strerror or str(failure),
            transfer.file.path,
            offset=transfer.offset,
            length=transfer.length,
            done=progress.done,
        )
        error.__cause__ = failure
    crc32 = progress.crc32 if transfer.checksum and error is None else None
    return Completion(transfer, progress.done, crc32, progress.retries, error)


def _pieces(transfer: Transfer) -> Iterator[tuple[Extent, memoryview]]:
    """Cut a transfer at multiples of a piece's length in the file; each piece with its memory.

    So only the first and the last one share a folio of the page cache with another transfer.
    """
    end = transfer.offset + transfer.length
    start = transfer.offset
    while start < end:
        stop = min(end, round_down(start, alignment=_PIECE_BYTES) + _PIECE_BYTES)
        address = transfer.address + (start - transfer.offset)
        yield Extent(start, stop - start), _memory_view(address, stop - start, _PYBUF_WRITE)
        start = stop


def _write_piece(
    transfer: Transfer,
    extent: Extent,
    memory: memoryview,
    progress: _Progress,
    window: DirtyWindow,
) -> None:
    """Write a piece and start its write-back."""
    if transfer.checksum:
        progress.crc32 = zlib.crc32(memory, progress.crc32)
    start = 0
    with window.writing(transfer.file, extent):
        while start < extent.length:
            moved = _move(transfer, memory[start:], extent.offset + start, progress)
            start += moved
            progress.done += moved
            progress.retries += start < extent.length


def _read_piece(
    transfer: Transfer, extent: Extent, memory: memoryview, progress: _Progress
) -> None:
    """Read a piece and drop it from the page cache."""
    start = 0
    while start < extent.length:
        moved = _move(transfer, memory[start:], extent.offset + start, progress)
        if not moved:
            raise OSError(errno.EIO, "unexpected end of file")
        start += moved
        progress.done += moved
        progress.retries += start < extent.length
    if transfer.checksum:
        progress.crc32 = zlib.crc32(memory, progress.crc32)
    drop_cached(transfer.file.fd, extent)


def _move(transfer: Transfer, memory: memoryview, offset: int, progress: _Progress) -> int:
    """Ask the kernel to move some bytes, and again after an error that may pass."""
    while True:
        try:
            if transfer.operation is Operation.WRITE:
                return os.pwrite(transfer.file.fd, memory, offset)
            return os.preadv(transfer.file.fd, [memory], offset)
        except OSError as error:
            if not _may_pass(error, transfer, progress):
                raise
        progress.errors += 1
        progress.retries += 1
        time.sleep(_ERROR_PAUSE_S * progress.errors)


def _may_pass(error: OSError, transfer: Transfer, progress: _Progress) -> bool:
    """Whether to try again after an error."""
    if error.errno not in _MAY_PASS or progress.errors == _ERROR_RETRIES_MAX:
        return False
    if transfer.operation is Operation.READ:
        return True
    # On a mount with `sync` every write ends with the sync of what it wrote, and may be told of the
    # failed write-back of another thread's, who is then told nothing.
    try:
        return not os.fstatvfs(transfer.file.fd).f_flag & os.ST_SYNCHRONOUS
    except OSError:
        return False
