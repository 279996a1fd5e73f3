"""Seam stream: bytes that are copied in file order and written as whole blocks from slots."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dcp_gds.format.extent import Extent
from dcp_gds.io.device import MemoryRange
from dcp_gds.io.engine import Completion, Operation, Transfer
from dcp_gds.io.gpustream import GpuStream
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.staging import Slot, StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["Reservation", "SeamStream"]


# While one slot is copied to, the one before is summed and written: more would only hold slots.
_BATCHES_MAX = 2

WhenCopied = Callable[[MemoryRange], None]


@dataclass(frozen=True, slots=True)
class _Copied:
    """A copy from a device into a slot that is queued; `when_copied` gets its place there."""

    stream: GpuStream
    memory: MemoryRange
    when_copied: WhenCopied


@dataclass(slots=True, eq=False)
class _Filling:
    """A slot on its way into the file at `offset`; written once it is closed and has no gap."""

    slot: Slot
    offset: int
    length: int = 0
    gaps: int = 0
    closed: bool = False
    copies: list[_Copied] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Copies into one slot, and an event behind them in each device's stream."""

    filling: _Filling
    copies: list[_Copied]
    marks: list[tuple[GpuStream, ctypes.c_void_p]]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for bytes that are known later: the parts of slots that wait for them."""

    stream: SeamStream
    parts: list[tuple[_Filling, memoryview]] = field(default_factory=list)

    def fill(self, data: bytes) -> None:
        """Put the bytes in their place; a slot that has no other gap may now be written."""
        start = 0
        for filling, view in self.parts:
            view[:] = data[start : start + len(view)]
            start += len(view)
            filling.gaps -= 1
            self.stream.write_if_complete(filling)
        assert start == len(data)


class SeamStream:
    """Appends bytes at ascending offsets of one shard file.

    Between two seams lies a body, which others write; `skip` steps over it. Slots hold at most what
    the pool allows: when none is free, transfers in flight are reaped until one is.
    """

    def __init__(self, file: ShardFile, *, queue: TransferQueue, pool: StagingPool) -> None:
        self._file = file
        self._queue = queue
        self._pool = pool
        self._position = 0
        self._current: _Filling | None = None
        self._taken: set[_Filling] = set()
        self._batches: deque[_Batch] = deque()

    def append(self, data: bytes) -> None:
        """Append bytes."""
        filling = self._current
        if filling is not None and filling.length + len(data) < filling.slot.length:
            # The loop below would do the same in twice the time, and each small item comes here
            # twice.
            end = filling.length + len(data)
            filling.slot.view[filling.length : end] = data
            filling.length = end
            self._position += len(data)
            return
        start = 0
        while start < len(data):
            filling, room = self._room()
            part = data[start : start + room]
            filling.slot.view[filling.length : filling.length + len(part)] = part
            self._advance(filling, len(part))
            start += len(part)

    def append_memory(self, *, address: int, length: int) -> None:
        """Append bytes of memory; they have been copied when this returns."""
        while length:
            filling, room = self._room()
            part = min(room, length)
            ctypes.memmove(filling.slot.address + filling.length, address, part)
            self._advance(filling, part)
            address += part
            length -= part

    def append_device(
        self, stream: GpuStream, *, address: int, length: int, when_copied: WhenCopied
    ) -> int:
        """Append bytes of device memory, as many as the slot at hand has room for.

        The copy is queued. `when_copied` is called once it is done, at the latest by `finish`, and
        before the slot is written; until then the memory has to stay as it is. Thousands of copies
        cost one wait for each slot.

        Returns
        -------
        int
            Bytes that were appended: at least 1, at most `length`.
        """
        self._pool.pin(stream)
        filling, room = self._room()
        part = min(room, length)
        target = filling.slot.address + filling.length
        stream.to_host(address, target=target, length=part)
        filling.copies.append(_Copied(stream, MemoryRange(target, part), when_copied))
        self._advance(filling, part)
        return part

    def settle(self) -> bool:
        """Wait for the oldest copies, or for a transfer; False if there was nothing to wait for."""
        if not self._batches and self._current is not None:
            self._begin_batch(self._current)
        if self._batches:
            self._finish_batch()
            return True
        return self._queue.reap()

    def settle_all(self) -> None:
        """Wait until all copies and transfers are done."""
        while self.settle():
            pass

    def reserve(self, length: int) -> Reservation:
        """Append a gap, to be filled before the stream is finished."""
        reservation = Reservation(self)
        while length:
            filling, room = self._room()
            part = min(room, length)
            filling.gaps += 1
            view = filling.slot.view[filling.length : filling.length + part]
            reservation.parts.append((filling, view))
            self._advance(filling, part)
            length -= part
        return reservation

    def pad_to(self, offset: int) -> None:
        """Append zeros up to a file offset."""
        assert offset >= self._position
        if offset > self._position:
            self.append(bytes(offset - self._position))

    def skip(self, body: Extent) -> None:
        """Step over a body, whole blocks that begin where the seam ends."""
        assert (body.offset, body.length % self._file.alignment) == (self._position, 0)
        self._close_current()
        self._position = body.end

    def finish(self) -> None:
        """Submit what is left: whole blocks, and no gap that is not filled."""
        assert self._position % self._file.alignment == 0
        self._close_current()
        while self._batches:
            self._finish_batch()
        assert not any(filling.gaps for filling in self._taken)

    def abandon(self) -> None:
        """Give back all slots. No transfer may be in flight any more; copies are waited for."""
        copies = [copied for batch in self._batches for copied in batch.copies]
        for filling in self._taken:
            copies += filling.copies
        for stream in {copied.stream for copied in copies}:
            stream.drain()
        self._batches.clear()
        for filling in self._taken:
            self._pool.release(filling.slot)
        self._taken.clear()
        self._current = None

    def write_if_complete(self, filling: _Filling) -> None:
        """Submit a slot that is closed and has no gap."""
        if not filling.closed or filling.gaps:
            return
        transfer = Transfer(
            Operation.WRITE, self._file, filling.slot.address, filling.length, filling.offset
        )

        def give_back(_: Completion) -> None:
            self._taken.discard(filling)
            self._pool.release(filling.slot)

        self._queue.submit(transfer, give_back)

    def _room(self) -> tuple[_Filling, int]:
        """Return the slot that is being filled, or a fresh one, and the bytes it has room for."""
        filling = self._current
        if filling is None:
            # A slot begins on a whole block of the file: seams begin there, and slots are whole
            # blocks long.
            assert self._position % self._file.alignment == 0
            filling = _Filling(self._free_slot(), self._position)
            self._current = filling
            self._taken.add(filling)
        return filling, filling.slot.length - filling.length

    def _advance(self, filling: _Filling, length: int) -> None:
        """Count bytes as appended; close a slot that is full."""
        filling.length += length
        self._position += length
        if filling.length == filling.slot.length:
            self._close_current()

    def _close_current(self) -> None:
        """Close the slot that is being filled: it is written as soon as it has no gap."""
        filling = self._current
        if filling is not None:
            self._current = None
            filling.closed = True
            self._begin_batch(filling)
            self.write_if_complete(filling)
            while len(self._batches) > _BATCHES_MAX:
                self._finish_batch()

    def _free_slot(self) -> Slot:
        """Take a slot, waiting for copies and transfers until one is given back."""
        while (slot := self._pool.acquire()) is None:
            waited = self.settle()
            assert waited, "slots are held that nothing in flight gives back"
        return slot

    def _begin_batch(self, filling: _Filling) -> None:
        """Put an event behind the copies into a slot, which has a gap until they are done."""
        if filling.copies:
            streams = dict.fromkeys(copied.stream for copied in filling.copies)
            marks = [(stream, stream.mark()) for stream in streams]
            self._batches.append(_Batch(filling, filling.copies, marks))
            filling.copies = []
            filling.gaps += 1

    def _finish_batch(self) -> None:
        """Wait for the oldest copies, and do what was to be done after them."""
        batch = self._batches[0]
        for stream, event in batch.marks:
            stream.wait(event)
        self._batches.popleft()
        for copied in batch.copies:
            copied.when_copied(copied.memory)
        batch.filling.gaps -= 1
        self.write_if_complete(batch.filling)
