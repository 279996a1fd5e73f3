"""Run reader: reads small items together with their neighbours, and copies each from there."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dcp_gds.checkpoint.box import Slab
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.loadtarget import LoadTarget
from dcp_gds.checkpoint.readsession import ReadSession
from dcp_gds.format.extent import Extent
from dcp_gds.io.checksum import crc32_of
from dcp_gds.io.engine import Completion

__all__ = ["RunReader"]

# Small items that lie closer than this are read together: an envelope, and less than a block of
# padding.
_GAP_BYTES_MAX = 8 << 10


@dataclass(frozen=True, slots=True)
class _Small:
    """A small item and what of it is read: all of it when that is compared with a checksum."""

    item: LoadItem
    extent: Extent


class RunReader:
    """Reads the small items of a shard file, a run of neighbours with each transfer."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    def read(self, items: Iterable[LoadItem]) -> None:
        """Read items. Their transfers may be in flight on return."""
        run: list[_Small] = []
        # By what is read of them: several read items may want parts of one payload, in any order.
        smalls = [
            _Small(item, item.extent if item.checks is None else item.payload) for item in items
        ]
        for small in sorted(smalls, key=lambda small: small.extent.offset):
            if run and not self._fits(run, small.extent):
                self._read_run(run)
                run = []
            run.append(small)
        if run:
            self._read_run(run)

    def _fits(self, run: list[_Small], extent: Extent) -> bool:
        """Whether an extent is near enough, and the run short enough, to be read with it."""
        gap = extent.offset - run[-1].extent.end
        span = self._session.rounded(run[0].extent.offset, extent.end)
        return gap <= _GAP_BYTES_MAX and span.length <= self._session.pool.slot_bytes

    def _read_run(self, run: list[_Small]) -> None:
        """Read neighbouring small items with one transfer."""
        whole = self._session.rounded(run[0].extent.offset, max(small.extent.end for small in run))
        slot = self._session.take_slot()

        def finish(_: Completion | None) -> None:
            memory = torch.frombuffer(slot.view, dtype=torch.uint8)
            for small in run:
                start = small.extent.offset - whole.offset
                self._finish_small(small, memory.narrow(0, start, small.extent.length))
            self._session.give_back(slot)

        if whole.length:
            self._session.queue.submit(
                self._session.transfer(whole, slot.address, checksum=False), finish
            )
        else:
            finish(None)

    def _finish_small(self, small: _Small, memory: torch.Tensor) -> None:
        """Compare a small item's payload and copy what was asked for."""
        item, extent = small.item, small.extent
        if item.checks is not None and extent.length:
            computed = crc32_of(memory.data_ptr(), length=extent.length)
            # A small payload is one checksum block.
            (block,), (expected,) = item.checks.blocks, item.checks.block_crc32s
            self._session.compare(item, block, expected, computed)
        verified = item.checks is not None
        if item.stored is None:
            content = ctypes.string_at(memory.data_ptr(), extent.length)
            self._session.finish_bytes(item, io.BytesIO(content), verified=verified)
            return
        target = LoadTarget(item, self._session.planner, strict_dtype=self._session.strict_dtype)
        box = target.box
        start = item.extent.offset - extent.offset
        if box.length and (address := target.address) is not None:
            ctypes.memmove(address, memory.data_ptr() + start, box.length)
        elif box.length:
            slab = Slab((0,) * len(box.sizes), box.sizes, 0, box.span)
            target.put(slab, memory.narrow(0, start, box.span))
        target.commit()
        self._session.count(box.length, verified=verified)
