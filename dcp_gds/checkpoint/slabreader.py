"""Slab reader: reads slabs of a stored tensor through staging slots, no block of the file twice."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from dcp_gds.checkpoint.box import Slab
from dcp_gds.checkpoint.loadtarget import LoadTarget
from dcp_gds.checkpoint.readsession import ReadSession
from dcp_gds.format.extent import Extent, round_down
from dcp_gds.io.engine import Completion
from dcp_gds.io.staging import Slot

__all__ = ["SlabReader"]


@dataclass(slots=True, eq=False)
class _SlabRead:
    """A slab that is being read, in whole blocks; the first `carried` bytes were read before."""

    slab: Slab
    slot: Slot
    extent: Extent
    blocks: Extent
    carried: int
    missing: int


class SlabReader:
    """Reads the slabs of one read item, ascending, without checksums.

    Slabs that lie close together share a block of the file: the first one reads it, the next gets a
    copy. So slabs are taken up in file order, whatever the order of completions.

    Parameters
    ----------
    start
        File offset of the box's first element.
    finish
        Called when the last slab is in the target.
    """

    def __init__(
        self, session: ReadSession, target: LoadTarget, *, start: int, finish: Callable[[], None]
    ) -> None:
        self._session = session
        self._target = target
        self._start = start
        self._finish = finish
        self._reads: deque[_SlabRead] = deque()
        self._submitted_all = False
        self._last_block = b""

    def read(self, slabs: Iterable[Slab]) -> None:
        """Read slabs, each with its edge blocks no longer than a slot."""
        read_end = 0
        for slab in slabs:
            extent = Extent(self._start + slab.offset, slab.length)
            blocks = self._session.rounded(extent.offset, extent.end)
            slot = self._session.take_slot()
            carried = max(0, read_end - blocks.offset)
            read_end = blocks.end
            read = _SlabRead(slab, slot, extent, blocks, carried, blocks.length - carried)
            self._reads.append(read)
            self._submit(read)
            # A slab within the block that the one before ended in has nothing to wait for.
            self._take_up()
        self._submitted_all = True
        if not self._reads:
            self._finish()

    def _submit(self, read: _SlabRead) -> None:
        """Submit what of a slab's blocks has not been read for the slab before."""

        def count(completion: Completion) -> None:
            read.missing -= completion.transfer.length
            self._take_up()

        offset = read.blocks.offset + read.carried
        while offset < read.blocks.end:
            cut = round_down(
                offset + self._session.transfer_bytes, alignment=self._session.file.alignment
            )
            piece = Extent(offset, min(cut, read.blocks.end) - offset)
            address = read.slot.address + (offset - read.blocks.offset)
            transfer = self._session.transfer(piece, address, checksum=False)
            self._session.queue.submit(transfer, count)
            offset = piece.end

    def _take_up(self) -> None:
        """Copy every slab that is complete and has none before it that is not."""
        while self._reads and not self._reads[0].missing:
            read = self._reads.popleft()
            slot, blocks = read.slot, read.blocks
            ctypes.memmove(slot.address, self._last_block[-read.carried :], read.carried)
            memory = torch.frombuffer(slot.view, dtype=torch.uint8)
            self._target.put(
                read.slab, memory.narrow(0, read.extent.offset - blocks.offset, read.slab.length)
            )
            length = min(self._session.file.alignment, blocks.length)
            self._last_block = ctypes.string_at(slot.address + blocks.length - length, length)
            self._session.give_back(slot)
            if self._submitted_all and not self._reads:
                self._finish()
