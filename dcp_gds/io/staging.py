"""Staging pool: fixed slots of page-aligned host memory, made when needed, kept until the end."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.gpustream import GpuStream

__all__ = ["Slot", "StagingPool"]


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """Writable memory of one slot: `length` bytes at `address`, and a view of them."""

    address: int
    length: int
    view: memoryview


class StagingPool:
    """Hands out slots up to a fixed number of bytes. For one thread at a time.

    Parameters
    ----------
    slot_bytes
        Length of each slot, whole pages.
    bytes_max
        Most bytes of all slots together; at least one slot.
    """

    def __init__(self, *, slot_bytes: int, bytes_max: int) -> None:
        assert slot_bytes % mmap.PAGESIZE == 0
        assert 0 < slot_bytes <= bytes_max
        self._slot_bytes = slot_bytes
        self._slots_max = bytes_max // slot_bytes
        self._free: list[Slot] = []
        self._taken: set[Slot] = set()
        self._peak_bytes = 0
        self._was_closed = False
        self._pinner: GpuStream | None = None

    @property
    def slot_bytes(self) -> int:
        """Length of each slot."""
        return self._slot_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes that all slots together ever took."""
        return self._peak_bytes

    def acquire(self) -> Slot | None:
        """Return a slot with unknown contents, or None if all that may exist are taken.

        The caller owns the slot until it gives it back by `release`. The slot used last comes
        first, as the processor's caches may still hold it.
        """
        if not self._free:
            if len(self._taken) >= self._slots_max:
                return None
            made_now = _make_slot(self._slot_bytes)
            if self._pinner is not None:
                self._pinner.pin(made_now.address, length=made_now.length)
            self._free.append(made_now)
            made = (len(self._taken) + 1) * self._slot_bytes
            self._peak_bytes = max(self._peak_bytes, made)
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def pin(self, stream: GpuStream) -> None:
        """Register all slots with CUDA, those there are and those to come; done once.

        torch's own pinned memory is not used: it takes the next power of two of what it is asked
        for, and is not given back.
        """
        if self._pinner is not None:
            return
        pinned: list[Slot] = []
        try:
            for slot in (*self._free, *self._taken):
                stream.pin(slot.address, length=slot.length)
                pinned.append(slot)
        except UnsupportedError:
            for slot in pinned:
                stream.unpin(slot.address)
            raise
        self._pinner = stream

    def release(self, slot: Slot) -> None:
        """Give a slot back. Nothing may be in flight from or to it any more."""
        if slot in self._taken:
            self._taken.remove(slot)
            self._free.append(slot)
        else:
            assert self._was_closed, "not a slot of this pool, or released twice"

    def close(self) -> None:
        """Let go of all slots. May be called twice, and after it the pool makes new ones.

        A slot that is taken stays its taker's, who may give it back or not.

        A slot's memory goes when the last view of it does, so that a view which is held too long,
        by a traceback for one, never points at memory of somebody else.
        """
        if self._pinner is not None:
            for slot in (*self._free, *self._taken):
                self._pinner.unpin(slot.address)
            self._pinner = None
        self._free.clear()
        self._taken.clear()
        self._was_closed = True


def _make_slot(length: int) -> Slot:
    """Map a slot and touch it: a copy into pages that are not there yet is ten times slower."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A forked child would otherwise share the pages copy-on-write, and the next write here would
    # move them away from under a transfer.
    memory.madvise(mmap.MADV_DONTFORK)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 0, length)
    return Slot(address, length, memoryview(memory))
