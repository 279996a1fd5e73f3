"""Direct engine: native threads that move host memory to and from O_DIRECT files, uncopied."""

from __future__ import annotations

import errno
import os
from itertools import count

from dcp_gds import _core
from dcp_gds._core import crc32, crc32_combine, dio_alignment, preallocate
from dcp_gds.errors import TransferError
from dcp_gds.io.engine import Completion, EngineName, Operation, Transfer
from dcp_gds.io.fileerror import transfer_error

__all__ = ["DirectEngine", "crc32", "crc32_combine", "dio_alignment", "preallocate"]

# Each thread has one request at the drive. Local drives reach their bandwidth with far fewer of
# 1 to 8 MiB; requests beyond wait in the queue.
WORKERS_MAX = 32

# A worker's bounce buffer: stays in a core's second-level cache between the copy, the checksum and
# the transfer, and is long enough for a drive's bandwidth. Only misaligned transfers make one.
BOUNCE_BYTES = 1 << 20


class DirectEngine:
    """Moves host memory by O_DIRECT; what is not aligned goes through a bounce buffer.

    Files that are not open for direct I/O (`file.alignment` 1) work too. In a child that was forked
    while an engine was open only its `close` works, and does nothing: the threads are not there.

    Parameters
    ----------
    queue_depth
        Most transfers submitted and not yet reaped; and threads, up to a bound.

    Raises
    ------
    OSError
        If the threads cannot be started.
    """

    def __init__(self, *, queue_depth: int) -> None:
        self._queue_depth = queue_depth
        self._core = _core.Engine(
            workers=min(queue_depth, WORKERS_MAX),
            queue_depth=queue_depth,
            bounce_bytes=BOUNCE_BYTES,
        )
        self._tickets = count()
        self._transfers: dict[int, Transfer] = {}

    @property
    def name(self) -> EngineName:
        """The engine that moves the bytes, as reports show it."""
        return EngineName.DIRECT

    @property
    def queue_depth(self) -> int:
        """Most transfers in flight."""
        return self._queue_depth

    @property
    def in_flight(self) -> int:
        """Transfers submitted and not yet reaped."""
        return self._core.in_flight

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer and return at once.

        Raises
        ------
        RuntimeError
            If `queue_depth` transfers are in flight, or the engine is closed.
        """
        ticket = next(self._tickets)
        # First, so that an interrupt in between cannot leave a ticket in flight that nobody knows.
        self._transfers[ticket] = transfer
        try:
            self._core.submit(
                ticket=ticket,
                write=transfer.operation is Operation.WRITE,
                fd=transfer.file.fd,
                address=transfer.address,
                length=transfer.length,
                offset=transfer.offset,
                alignment=transfer.file.alignment,
                checksum=transfer.checksum,
            )
        except Exception:
            del self._transfers[ticket]
            raise

    def reap(self) -> list[Completion]:
        """Wait for at least one completion and return all; empty when nothing is in flight."""
        return [_completion(self._transfers.pop(raw.ticket), raw) for raw in self._core.reap()]

    def drain(self) -> list[Completion]:
        """Wait until nothing is in flight and return what had not been reaped."""
        completions: list[Completion] = []
        while self.in_flight:
            completions += self.reap()
        return completions

    def close(self) -> None:
        """Finish what was submitted, discard it, and end the threads. May be called twice."""
        self._core.close()
        self._transfers.clear()


def _completion(transfer: Transfer, raw: _core.Completion) -> Completion:
    """Say in Python's terms what came of a transfer."""
    error = None
    if raw.errno != 0:
        error = _error(transfer, errno_=raw.errno, reason=os.strerror(raw.errno), done=raw.done)
    elif raw.done < transfer.length:
        error = _error(transfer, errno_=errno.EIO, reason="unexpected end of file", done=raw.done)
    return Completion(
        transfer=transfer,
        moved=raw.moved,
        crc32=raw.crc32 if transfer.checksum and error is None else None,
        retries=raw.retries,
        error=error,
    )


def _error(transfer: Transfer, *, errno_: int, reason: str, done: int) -> TransferError:
    """Name the file and the extent of what failed."""
    return transfer_error(
        errno_,
        reason,
        transfer.file.path,
        offset=transfer.offset,
        length=transfer.length,
        done=done,
    )
