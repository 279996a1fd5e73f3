"""GDS engine: threads that move a GPU's memory to and from files by cuFile, past host memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import F_GETFL, fcntl
from functools import partial

from dcp_gds.errors import TransferError
from dcp_gds.format.extent import Extent, round_down, round_up
from dcp_gds.io.checksum import crc32_combine
from dcp_gds.io.engine import Completion, EngineName, Operation, Transfer
from dcp_gds.io.fileerror import transfer_error
from dcp_gds.io.gds import GdsFile, GdsMonitor
from dcp_gds.io.gdsproof import bytes_by_path
from dcp_gds.io.gdswindow import SLOT_BYTES, GdsSlot, GdsWindow
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.workers import Workers

__all__ = ["DeviceChecksum", "GdsEngine"]

# A short transfer has moved some of its bytes and says nothing of why. The whole piece is written
# or read again: a second try tells an interruption from a fault, a third one costs little more.
_TRIES_MAX = 3

# CRC-32 of (address, length) in the GPU's memory, whose contents are there when it is called.
DeviceChecksum = Callable[[int, int], int]


@dataclass(slots=True)
class _Progress:
    """How far a transfer has come."""

    done: int = 0
    moved: int = 0
    crc32: int = 0
    retries: int = 0


class GdsEngine:
    """An `Engine` for memory of one GPU; its transfers' addresses are those of that GPU.

    What was queued to write the memory has to be done when a transfer is submitted: see
    `Device.wait_producer`. Every piece is copied to a slot of the window, or from there. cuFile's
    requests are whole blocks at whole blocks of the file, whatever the transfer's address; a read
    is rounded out to them. `retries` counts short transfers that were done again.

    In a child that was forked while the engine was open it is closed.

    Parameters
    ----------
    window
        Registered memory of the GPU, which stays the caller's. For one engine at a time.
    queue_depth
        Most transfers submitted and not yet reaped.
    checksum
        Computes CRC-32s; without it no transfer may ask for one.
    """

    def __init__(
        self, window: GdsWindow, *, queue_depth: int, checksum: DeviceChecksum | None
    ) -> None:
        self._window = window
        self._checksum = checksum
        self._pid = os.getpid()
        threads = min(queue_depth, window.slots)
        self._workers = Workers(name="gds", threads=threads, queue_depth=queue_depth)
        self._files: dict[ShardFile, GdsFile] = {}
        self._moved = 0
        self._monitor = GdsMonitor()
        self._lock = threading.Lock()

    @property
    def name(self) -> EngineName:
        """`EngineName.GDS`."""
        return EngineName.GDS

    @property
    def queue_depth(self) -> int:
        """Most transfers in flight."""
        return self._workers.queue_depth

    @property
    def in_flight(self) -> int:
        """Transfers submitted and not yet reaped."""
        return self._workers.in_flight if self._is_ours() else 0

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer and return at once.

        Raises
        ------
        RuntimeError
            If `queue_depth` transfers are in flight, or the engine is closed.
        """
        assert self._checksum is not None or not transfer.checksum
        assert transfer.file.direct
        if not self._is_ours():
            raise RuntimeError("the engine was opened before this process was forked: it is closed")
        self._workers.submit(partial(self._carry_out, transfer))

    def reap(self) -> list[Completion]:
        """Wait for at least one completion and return all; empty when nothing is in flight."""
        return self._workers.reap() if self._is_ours() else []

    def drain(self) -> list[Completion]:
        """Wait until nothing is in flight and return what had not been reaped."""
        return self._workers.drain() if self._is_ours() else []

    def bytes_by_path(self) -> dict[str, int]:
        """Bytes of all its transfers so far by the path that they took, as gdsproof names them.

        Nothing is in flight. Short transfers count with what they moved.
        """
        return bytes_by_path(self._monitor.counts(), moved=self._moved)

    def close(self) -> None:
        """Drain, discard, end the threads and close the files. May be called twice."""
        files, self._files = self._files, {}
        if not self._is_ours():
            for file in files.values():
                file.close()
            return
        try:
            self._workers.close()
        finally:
            self._monitor.close()
            # None is left open whose buffers the caller is about to free.
            if files:
                with self._window.context.current():
                    for file in files.values():
                        file.close()

    def _is_ours(self) -> bool:
        """Whether this process made the engine, and so has its threads."""
        return os.getpid() == self._pid

    def _carry_out(self, transfer: Transfer) -> Completion:
        """Do one transfer, on a thread of the engine."""
        progress = _Progress()
        error = None
        move = self._write if transfer.operation is Operation.WRITE else self._read
        try:
            with self._window.context.current(), self._slot() as slot:
                file = self._open(transfer.file)
                for extent in _pieces(transfer):
                    move(_Piece(transfer, file, slot, extent), progress)
        except OSError as failure:
            error = _error(transfer, failure, progress)
        with self._lock:
            self._moved += progress.moved
        crc32 = progress.crc32 if transfer.checksum and error is None else None
        return Completion(transfer, progress.moved, crc32, progress.retries, error)

    @contextmanager
    def _slot(self) -> Iterator[GdsSlot]:
        """A slot of the window; there are as many threads as slots, or fewer."""
        slot = self._window.take()
        try:
            yield slot
        finally:
            self._window.give_back(slot)

    def _open(self, file: ShardFile) -> GdsFile:
        """Register a file with cuFile when it is first used."""
        if file.fd == -1:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with self._lock:
            opened = self._files.get(file)
            if opened is None:
                writable = fcntl(file.fd, F_GETFL) & os.O_ACCMODE != os.O_RDONLY
                opened = self._files[file] = GdsFile(file.fd, writable=writable)
        return opened

    def _write(self, piece: _Piece, progress: _Progress) -> None:
        """Write a piece, and count it only when all of it was written."""
        extent = piece.extent
        self._copy(source=piece.address, target=piece.slot.address, piece=piece)
        self._add_checksum(piece, piece.slot.address, progress)
        for _ in range(_TRIES_MAX):
            moved = piece.file.write(
                self._window.memory, piece.slot.start, length=extent.length, offset=extent.offset
            )
            progress.moved += moved
            if moved == extent.length:
                progress.done += moved
                return
            progress.retries += 1
        raise _short("wrote", moved, extent)

    def _read(self, piece: _Piece, progress: _Progress) -> None:
        """Read the blocks that hold a piece, and copy it to its place."""
        blocks = piece.blocks()
        shift = piece.extent.offset - blocks.offset
        for _ in range(_TRIES_MAX):
            moved = piece.file.read(
                self._window.memory, piece.slot.start, length=blocks.length, offset=blocks.offset
            )
            progress.moved += moved
            came = min(moved - shift, piece.extent.length)
            at_end = blocks.offset + moved >= os.fstat(piece.transfer.file.fd).st_size
            if came == piece.extent.length or at_end:
                break
            progress.retries += 1
        else:
            raise _short("read", moved, blocks)
        source = piece.slot.address + shift
        if came > 0:
            self._copy(source=source, target=piece.address, piece=piece, length=came)
            progress.done += came
        if came < piece.extent.length:
            raise OSError(errno.EIO, "unexpected end of file")
        self._add_checksum(piece, source, progress)

    def _copy(self, *, source: int, target: int, piece: _Piece, length: int | None = None) -> None:
        """Copy a piece, or its first bytes, within the GPU; done on return."""
        self._window.context.copy(
            source=source,
            target=target,
            length=piece.extent.length if length is None else length,
            stream=piece.slot.stream,
        )

    def _add_checksum(self, piece: _Piece, address: int, progress: _Progress) -> None:
        """Let the transfer's CRC-32 cover the piece, which lies in the window."""
        if self._checksum is not None and piece.transfer.checksum:
            length = piece.extent.length
            crc32 = self._checksum(address, length)
            progress.crc32 = crc32_combine(progress.crc32, crc32, second_length=length)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a transfer that fits a slot."""

    transfer: Transfer
    file: GdsFile
    slot: GdsSlot
    extent: Extent

    @property
    def address(self) -> int:
        """Where its bytes are, or go."""
        return self.transfer.address + self.extent.offset - self.transfer.offset

    def blocks(self) -> Extent:
        """The whole blocks of the file that hold it."""
        alignment = self.transfer.file.alignment
        start = round_down(self.extent.offset, alignment=alignment)
        return Extent(start, round_up(self.extent.end, alignment=alignment) - start)


def _pieces(transfer: Transfer) -> Iterator[Extent]:
    """Cut a transfer where a slot is full of the whole blocks that hold it."""
    end = transfer.offset + transfer.length
    start = transfer.offset
    first = round_down(start, alignment=transfer.file.alignment)
    for limit in range(first + SLOT_BYTES, end + SLOT_BYTES, SLOT_BYTES):
        if start < end:
            yield Extent(start, min(limit, end) - start)
            start = limit


def _short(verb: str, moved: int, extent: Extent) -> OSError:
    """The error of a transfer that stays short."""
    return OSError(
        errno.EIO,
        f"cuFile {verb} {moved} of {extent.length} bytes at {extent.offset} without an error, the"
        f" last of {_TRIES_MAX} times",
    )


def _error(transfer: Transfer, failure: OSError, progress: _Progress) -> TransferError:
    """Name the file and the extent of what failed."""
    error = transfer_error(
        failure.errno or errno.EIO,
        failure.strerror or str(failure),
        transfer.file.path,
        offset=transfer.offset,
        length=transfer.length,
        done=progress.done,
    )
    error.__cause__ = failure
    return error
