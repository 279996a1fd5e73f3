"""Shard reader: reads the items of one shard file, where possible straight into their targets."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.planner import LoadPlanner

from dcp_gds.checkpoint.box import Slab, cover_blocks
from dcp_gds.checkpoint.itemchecksum import ItemChecksum, PayloadChecksum
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.loadtarget import LoadTarget
from dcp_gds.checkpoint.saveitem import address_of
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent, round_down, round_up
from dcp_gds.io.checksum import crc32_of
from dcp_gds.io.engine import Completion, Operation, Transfer
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.staging import Slot, StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["ReadCounts", "ShardReader"]

# Rows that lie further apart are read one by one: reading this much costs a local drive about as
# much as a request.
_GAP_BYTES_MAX = 64 << 10
# Small items that lie closer than this are read together: an envelope, and less than a block of
# padding.
_RUN_GAP_BYTES_MAX = 8 << 10
# Up to here an item is read together with its neighbours and copied, as in saving.
_SMALL_BYTES_MAX = 256 << 10


@dataclass(slots=True)
class ReadCounts:
    """Payload bytes that were loaded, and how many of them were compared with a checksum."""

    loaded: int = 0
    verified: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A range of the file, and the memory it goes to."""

    extent: Extent
    address: int
    keep: object
    when_read: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class _Small:
    """A small item and what of it is read: all of it when that is compared with a checksum."""

    item: LoadItem
    extent: Extent


class ShardReader:
    """Reads items of one shard file.

    Parameters
    ----------
    file, file_length
        Open for reading; its length in bytes.
    planner
        DCP's; resolves targets and takes byte items.
    strict_dtype
        Whether a target of another dtype is an error.
    check_bytes
        Called with a byte item's name and content before the planner gets it.
    when_loaded
        Called with the payload bytes of each item that is complete.
    """

    def __init__(
        self,
        file: ShardFile,
        *,
        file_length: int,
        queue: TransferQueue,
        pool: StagingPool,
        planner: LoadPlanner,
        transfer_bytes: int,
        strict_dtype: bool,
        check_bytes: Callable[[str, io.BytesIO], None],
        when_loaded: Callable[[int], None],
    ) -> None:
        self.counts = ReadCounts()
        self._file = file
        self._file_length = file_length
        self._queue = queue
        self._pool = pool
        self._planner = planner
        self._transfer_bytes = transfer_bytes
        self._strict_dtype = strict_dtype
        self._check_bytes = check_bytes
        self._when_loaded = when_loaded
        self._taken: set[Slot] = set()

    def read(self, items: Iterable[LoadItem]) -> None:
        """Read items and hand them to the planner.

        After an error the caller abandons first the queue, then this reader.

        Raises
        ------
        CorruptCheckpointError
            If a checksum disagrees; names the item, the file and the block. Targets may have been
            written to.
        TransferError
            If reading fails.
        """
        run: list[_Small] = []
        for item in sorted(items, key=lambda item: item.payload.offset):
            if item.payload.length > _SMALL_BYTES_MAX:
                self._read_large(item)
                continue
            small = _Small(item, _extent_of(item))
            if run and not self._fits(run, small.extent):
                self._read_run(run)
                run = []
            run.append(small)
        if run:
            self._read_run(run)
        self._queue.drain()

    def abandon(self) -> None:
        """Give back staging slots after a failure. Nothing may be in flight any more."""
        for slot in self._taken:
            self._pool.release(slot)
        self._taken.clear()

    # Small items: read together into a slot, compared and copied from there.

    def _fits(self, run: list[_Small], extent: Extent) -> bool:
        """Whether an extent is near enough, and the run short enough, to be read with it."""
        gap = extent.offset - run[-1].extent.end
        span = self._rounded(run[0].extent.offset, extent.end)
        return gap <= _RUN_GAP_BYTES_MAX and span.length <= self._pool.slot_bytes

    def _read_run(self, run: list[_Small]) -> None:
        """Read neighbouring small items with one transfer."""
        whole = self._rounded(run[0].extent.offset, max(small.extent.end for small in run))
        slot = self._take_slot()

        def finish(_: Completion | None) -> None:
            memory = torch.frombuffer(slot.view, dtype=torch.uint8)
            for small in run:
                start = small.extent.offset - whole.offset
                self._finish_small(small, memory.narrow(0, start, small.extent.length))
            self._give_back(slot)

        if whole.length:
            self._queue.submit(self._transfer(whole, slot.address, checksum=False), finish)
        else:
            finish(None)

    def _finish_small(self, small: _Small, memory: torch.Tensor) -> None:
        """Compare a small item's payload and copy what was asked for."""
        item, extent = small.item, small.extent
        if item.checks is not None and extent.length:
            computed = crc32_of(memory.data_ptr(), length=extent.length)
            # A small payload is one checksum block.
            (block,), (expected,) = item.checks.blocks, item.checks.block_crc32s
            self._compare(item, block, expected, computed)
        verified = item.checks is not None
        if item.stored is None:
            content = ctypes.string_at(memory.data_ptr(), extent.length)
            self._finish_bytes(item, io.BytesIO(content), verified=verified)
            return
        target = LoadTarget(item, self._planner, strict_dtype=self._strict_dtype)
        box = target.box
        start = item.extent.offset - extent.offset
        if box.length and (address := target.address) is not None:
            ctypes.memmove(address, memory.data_ptr() + start, box.length)
        elif box.length:
            slab = Slab((0,) * len(box.sizes), box.sizes, 0, box.span)
            target.put(slab, memory.narrow(0, start, box.span))
        target.commit()
        self._count(box.length, verified=verified)

    # Large items: each by transfers of its own.

    def _read_large(self, item: LoadItem) -> None:
        """Read a large item."""
        if item.stored is None:
            self._read_large_bytes(item)
            return
        target = LoadTarget(item, self._planner, strict_dtype=self._strict_dtype)
        box = target.box
        if not box.length:
            target.commit()
            return
        start = item.extent.offset
        whole = Slab((0,) * len(box.sizes), box.sizes, 0, box.span)
        if (address := target.address) is not None:
            wanted: Iterable[_Wanted] = [_Wanted(Extent(start, box.length), address, target.tensor)]
            extents = [Extent(start, box.length)]
        else:
            slabs = [whole] if not box.is_nested else list(self._slabs(target, item))
            extents = [Extent(start + slab.offset, slab.length) for slab in slabs]
            wanted = self._slab_reads(target, slabs, extents)

        def finish(verified: bool) -> None:
            target.commit()
            self._count(box.length, verified=verified)

        self._read_wanted(item, extents, wanted, finish)

    def _slabs(self, target: LoadTarget, item: LoadItem) -> Iterable[Slab]:
        """Cut a box into slabs that fit a staging slot wherever they begin in a block."""
        # Whole checksum blocks are read anyway when verifying.
        rounds_out = item.checks is not None and item.checks.partial
        gap_max = self._pool.slot_bytes if rounds_out else _GAP_BYTES_MAX
        bytes_max = self._pool.slot_bytes - 2 * self._file.alignment
        return target.box.slabs(bytes_max=bytes_max, gap_max=gap_max)

    def _slab_reads(
        self, target: LoadTarget, slabs: Sequence[Slab], extents: Sequence[Extent]
    ) -> Iterable[_Wanted]:
        """Take memory for one slab after the other, to be copied from when it has been read."""
        for slab, extent in zip(slabs, extents, strict=True):
            yield self._slab_read(target, slab, extent)

    def _slab_read(self, target: LoadTarget, slab: Slab, extent: Extent) -> _Wanted:
        """Memory for one slab, and what to do with it."""
        shift = extent.offset % self._file.alignment
        if slab.length + shift > self._pool.slot_bytes:
            # Only a tensor whose elements share bytes is not cut to size.
            memory = torch.empty(slab.length, dtype=torch.uint8)
            return _Wanted(extent, memory.data_ptr(), memory, lambda: target.put(slab, memory))
        slot = self._take_slot()

        def copy() -> None:
            memory = torch.frombuffer(slot.view, dtype=torch.uint8)
            target.put(slab, memory.narrow(0, shift, slab.length))
            self._give_back(slot)

        return _Wanted(extent, slot.address + shift, slot, copy)

    def _read_large_bytes(self, item: LoadItem) -> None:
        """Read a byte item into the memory of its BytesIO."""
        length = item.payload.length
        data = io.BytesIO()
        data.seek(length - 1)
        data.write(b"\0")
        data.seek(0)
        with data.getbuffer() as buffer:
            address = address_of(buffer)

        def finish(verified: bool) -> None:
            self._finish_bytes(item, data, verified=verified)

        self._read_wanted(item, [item.payload], [_Wanted(item.payload, address, data)], finish)

    def _finish_bytes(self, item: LoadItem, data: io.BytesIO, *, verified: bool) -> None:
        """Hand a byte item to the planner."""
        self._check_bytes(item.fqn, data)
        self._planner.load_bytes(item.read_item, data)
        self._count(item.payload.length, verified=verified)

    def _read_wanted(
        self,
        item: LoadItem,
        extents: Sequence[Extent],
        wanted: Iterable[_Wanted],
        finish: Callable[[bool], None],
    ) -> None:
        """Read extents of an item, and what has to be read with them to compare checksums."""
        checks = item.checks
        read_whole = sum(extent.length for extent in extents) == item.payload.length
        if checks is not None and not checks.partial and not read_whole:
            checks = None
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
                    self._compare(item, block, want, got)
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
            wanted.extent, length_max=self._transfer_bytes, alignment=self._file.alignment
        )
        for piece in pieces:
            address = wanted.address + (piece.offset - wanted.extent.offset)
            transfer = self._transfer(piece, address, checksum=verify)
            self._queue.submit(transfer, count, keep=wanted.keep)

    def _read_slack(self, checksum: ItemChecksum, extent: Extent) -> None:
        """Read bytes that are only summed."""
        length_max = self._pool.slot_bytes - self._file.alignment
        alignment = self._file.alignment
        for piece in checksum.split(extent, length_max=length_max, alignment=alignment):
            slot = self._take_slot()

            def count(completion: Completion, slot: Slot = slot, piece: Extent = piece) -> None:
                self._give_back(slot)
                checksum.add(piece, completion.crc32 or 0)

            shift = piece.offset % self._file.alignment
            self._queue.submit(self._transfer(piece, slot.address + shift, checksum=True), count)

    def _transfer(self, extent: Extent, address: int, *, checksum: bool) -> Transfer:
        """A read of an extent into memory."""
        return Transfer(Operation.READ, self._file, address, extent.length, extent.offset, checksum)

    def _rounded(self, offset: int, end: int) -> Extent:
        """Round a range out to whole blocks, but not past the end of the file."""
        start = round_down(offset, alignment=self._file.alignment)
        end = min(round_up(end, alignment=self._file.alignment), self._file_length)
        return Extent(start, max(0, end - start) if end > offset else 0)

    def _compare(self, item: LoadItem, block: Extent, expected: int, computed: int) -> None:
        """Compare a checksum with the stored one."""
        if computed != expected:
            raise CorruptCheckpointError(
                f"bytes [{block.offset}, {block.end}) have CRC-32 {computed:08x},"
                f" {expected:08x} is stored",
                self._file.path,
                offset=block.offset,
                fqn=item.fqn,
            )

    def _count(self, loaded: int, *, verified: bool) -> None:
        """Count an item as complete."""
        self.counts.loaded += loaded
        self.counts.verified += loaded if verified else 0
        self._when_loaded(loaded)

    def _take_slot(self) -> Slot:
        """Take a staging slot."""
        slot = self._queue.slot(self._pool)
        self._taken.add(slot)
        return slot

    def _give_back(self, slot: Slot) -> None:
        """Give a staging slot back."""
        self._taken.discard(slot)
        self._pool.release(slot)


def _extent_of(item: LoadItem) -> Extent:
    """What is read of a small item."""
    return item.extent if item.checks is None else item.payload
