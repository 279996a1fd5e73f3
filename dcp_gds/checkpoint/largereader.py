"""Large reader: reads items that are worth transfers of their own, where possible to the target."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from dcp_gds.checkpoint.box import Slab, cover_blocks
from dcp_gds.checkpoint.itemchecksum import ItemChecksum, PayloadChecksum
from dcp_gds.checkpoint.loaditem import Checks, LoadItem
from dcp_gds.checkpoint.loadtarget import LoadTarget
from dcp_gds.checkpoint.readsession import ReadSession
from dcp_gds.checkpoint.slabreader import SlabReader
from dcp_gds.format.extent import Extent
from dcp_gds.io.engine import Completion
from dcp_gds.io.staging import Slot

__all__ = ["LargeReader"]

# Rows that lie further apart are read one by one: reading this much costs a local drive about as
# much as a request.
_GAP_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A range of the file, and the memory it goes to."""

    extent: Extent
    address: int
    keep: object
    when_read: Callable[[], None] | None = None


class LargeReader:
    """Reads large items of a shard file, one after the other."""

    def __init__(self, session: ReadSession) -> None:
        self._session = session

    def read(self, item: LoadItem) -> None:
        """Read an item. Its transfers may be in flight on return."""
        if item.stored is None:
            self._read_bytes(item)
            return
        target = LoadTarget(item, self._session.planner, strict_dtype=self._session.strict_dtype)
        box = target.box
        if not box.length:
            target.commit()
            return

        def finish(verified: bool) -> None:
            target.commit()
            self._session.count(box.length, verified=verified)

        checks = _usable_checks(item, length=box.length)
        start = item.extent.offset
        whole = Slab((0,) * len(box.sizes), box.sizes, 0, box.span)
        if (address := target.address) is not None:
            wanted: Iterable[_Wanted] = [_Wanted(Extent(start, box.length), address, target.tensor)]
            extents = [Extent(start, box.length)]
        elif checks is None and box.is_nested:
            reader = SlabReader(
                self._session, target, start=start, finish=lambda: finish(verified=False)
            )
            reader.read(self._slabs(target, checks))
            return
        else:
            slabs = [whole] if not box.is_nested else list(self._slabs(target, checks))
            extents = [Extent(start + slab.offset, slab.length) for slab in slabs]
            wanted = self._slab_reads(target, slabs, extents)
        self._read_wanted(item, checks, extents, wanted, finish)

    def _slabs(self, target: LoadTarget, checks: Checks | None) -> Iterable[Slab]:
        """Cut a box into slabs that fit a staging slot wherever they begin in a block."""
        # Whole checksum blocks are read anyway when verifying.
        gap_max = _GAP_BYTES_MAX if checks is None else self._session.pool.slot_bytes
        bytes_max = self._session.pool.slot_bytes - 2 * self._session.file.alignment
        return target.box.slabs(bytes_max=bytes_max, gap_max=gap_max)

    def _slab_reads(
        self, target: LoadTarget, slabs: Sequence[Slab], extents: Sequence[Extent]
    ) -> Iterable[_Wanted]:
        """Take memory for one slab after the other, to be copied from when it has been read."""
        for slab, extent in zip(slabs, extents, strict=True):
            yield self._slab_read(target, slab, extent)

    def _slab_read(self, target: LoadTarget, slab: Slab, extent: Extent) -> _Wanted:
        """Memory for one slab, and what to do with it."""
        shift = extent.offset % self._session.file.alignment
        if slab.length + shift > self._session.pool.slot_bytes:
            # Only a tensor whose elements share bytes is not cut to size.
            memory = torch.empty(slab.length, dtype=torch.uint8, device="cpu")
            return _Wanted(extent, memory.data_ptr(), memory, lambda: target.put(slab, memory))
        slot = self._session.take_slot()

        def copy() -> None:
            memory = torch.frombuffer(slot.view, dtype=torch.uint8)
            target.put(slab, memory.narrow(0, shift, slab.length))
            self._session.give_back(slot)

        return _Wanted(extent, slot.address + shift, slot, copy)

    def _read_bytes(self, item: LoadItem) -> None:
        """Read a byte item into the memory of its BytesIO."""
        length = item.payload.length
        data = io.BytesIO()
        data.seek(length - 1)
        data.write(b"\0")
        with data.getbuffer() as buffer:
            address = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()

        def finish(verified: bool) -> None:
            # A BytesIO that was made from bytes gives them out again without a copy.
            content = io.BytesIO(data.getvalue())
            self._session.finish_bytes(item, content, verified=verified)

        wanted = [_Wanted(item.payload, address, data)]
        self._read_wanted(item, item.checks, [item.payload], wanted, finish)

    def _read_wanted(
        self,
        item: LoadItem,
        checks: Checks | None,
        extents: Sequence[Extent],
        wanted: Iterable[_Wanted],
        finish: Callable[[bool], None],
    ) -> None:
        """Read extents of an item, and what has to be read with them to compare checksums."""
        slack: Sequence[Extent] = ()
        blocks = extents
        if checks is not None:
            covered = cover_blocks(extents, checks.blocks)
            blocks = [checks.blocks[index] for index in covered.blocks]
            slack = covered.slack
            expected = [checks.block_crc32s[index] for index in covered.blocks]

        def compare(computed: PayloadChecksum) -> None:
            if checks is not None:
                for block, want, got in zip(blocks, expected, computed.block_crc32s, strict=True):
                    self._session.compare(item, block, want, got)
            finish(checks is not None)

        # What was read last completes the checksums, so slack comes first and `compare` runs with
        # the last slab.
        checksum = ItemChecksum(blocks, when_done=compare)
        for extent in slack:
            self._read_slack(checksum, extent)
        for want in wanted:
            self._read_one(checksum, want, verify=checks is not None)

    def _read_one(self, checksum: ItemChecksum, wanted: _Wanted, *, verify: bool) -> None:
        """Read one extent into its memory."""
        missing = wanted.extent.length

        def count(completion: Completion) -> None:
            nonlocal missing
            transfer = completion.transfer
            missing -= transfer.length
            if not missing and wanted.when_read is not None:
                wanted.when_read()
            checksum.add(Extent(transfer.offset, transfer.length), completion.crc32 or 0)

        pieces = checksum.split(
            wanted.extent,
            length_max=self._session.transfer_bytes,
            alignment=self._session.file.alignment,
        )
        for piece in pieces:
            address = wanted.address + (piece.offset - wanted.extent.offset)
            transfer = self._session.transfer(piece, address, checksum=verify)
            self._session.queue.submit(transfer, count, keep=wanted.keep)

    def _read_slack(self, checksum: ItemChecksum, extent: Extent) -> None:
        """Read bytes that are only summed."""
        length_max = self._session.pool.slot_bytes - self._session.file.alignment
        alignment = self._session.file.alignment
        for piece in checksum.split(extent, length_max=length_max, alignment=alignment):
            slot = self._session.take_slot()

            def count(completion: Completion, slot: Slot = slot, piece: Extent = piece) -> None:
                self._session.give_back(slot)
                checksum.add(piece, completion.crc32 or 0)

            shift = piece.offset % self._session.file.alignment
            self._session.queue.submit(
                self._session.transfer(piece, slot.address + shift, checksum=True), count
            )


def _usable_checks(item: LoadItem, *, length: int) -> Checks | None:
    """The item's checks, if they can be made when so many bytes of its payload are read."""
    checks = item.checks
    if checks is None or checks.partial or length == item.payload.length:
        return checks
    return None
