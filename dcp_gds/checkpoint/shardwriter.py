"""Shard writer: writes the items of one shard file, bodies from memory, the rest through seams."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.distributed.checkpoint.planner import SavePlanner

from dcp_gds.checkpoint.itemchecksum import ItemChecksum, PayloadChecksum
from dcp_gds.checkpoint.itemwrite import ItemWrite
from dcp_gds.checkpoint.payload import append_packed, append_payload, append_staged
from dcp_gds.checkpoint.saveitem import (
    SaveItem,
    byte_item_data,
    form_of,
    held_memory,
    is_copied,
    is_dense,
    memory_of,
    resolve_tensor,
)
from dcp_gds.checkpoint.shardlayout import ShardLayout
from dcp_gds.errors import UnsupportedError
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import FooterBuilder, block_extents
from dcp_gds.io.checksum import crc32_of, crc32_of_bytes
from dcp_gds.io.device import MemoryRange, accelerator_of
from dcp_gds.io.engine import Completion, Operation, Transfer
from dcp_gds.io.seam import SeamStream
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.staging import StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["ShardWriter"]


class ShardWriter:
    """Writes one shard file.

    Parameters
    ----------
    shard
        The file's layout.
    transfer_bytes
        Largest transfer of a body.
    checksum
        Whether to compute CRC-32s.
    held_bytes_max
        Values that the planner allocates for this save are kept until they are written: most bytes
        of them at a time, or one value if it is larger.
    """

    def __init__(
        self,
        shard: ShardLayout,
        file: ShardFile,
        *,
        queue: TransferQueue,
        pool: StagingPool,
        token: str,
        transfer_bytes: int,
        checksum: bool,
        held_bytes_max: int,
    ) -> None:
        self._shard = shard
        self._file = file
        self._queue = queue
        self._stream = SeamStream(file, queue=queue, pool=pool)
        self._transfer_bytes = transfer_bytes
        self._checksum = checksum
        self._held = 0
        self._held_bytes_max = held_bytes_max
        self._footer = FooterBuilder(
            token=token,
            alignment=shard.alignment,
            block_length=shard.block_length,
            checksums=checksum,
            item_count=len(shard.items),
            block_count=shard.first_blocks[-1],
        )

    def write(self, planner: SavePlanner, *, after: Mapping[int, Callable[[], None]]) -> int:
        """Write all items and the footer; return the footer's CRC-32.

        `after` has what to do when so many items have been read and nothing is in flight.
        Afterwards the file holds whole blocks: it is neither synced nor cut to its final length.
        After an error the caller abandons first the queue, then this writer.
        """
        shard = self._shard
        for index, item in enumerate(shard.items):
            self._do(after, index)
            self._stream.pad_to(shard.placements[index].offset)
            if (memory := held_memory(item)) is not None:
                self._write_small(index, item, memory=memory)
            elif item.envelope is None:
                self._write_bytes(self._item_write(index), planner)
            else:
                self._write_tensor(self._item_write(index), planner)
        # The footer needs every checksum, so the payloads have to be done.
        self._stream.settle_all()
        self._do(after, len(shard.items))
        footer = self._footer.encode()
        self._stream.pad_to(shard.footer.offset)
        self._stream.append(footer)
        self._stream.pad_to(shard.allocated_length)
        self._stream.finish()
        self._queue.drain()
        return crc32_of_bytes(footer)

    def abandon(self) -> None:
        """Give back staging slots after a failure. Nothing may be in flight any more."""
        self._stream.abandon()

    def _do(self, after: Mapping[int, Callable[[], None]], index: int) -> None:
        """Do what was asked for in this place, once what was read for the items before is done."""
        if index in after:
            self._stream.settle_all()
            after[index]()

    def _item_write(self, index: int) -> ItemWrite:
        """Start an item whose checksum may come later than its last byte."""
        shard = self._shard
        return ItemWrite(
            index, shard.items[index], shard.placements[index], shard.first_blocks[index]
        )

    def _write_small(self, index: int, item: SaveItem, *, memory: MemoryRange) -> None:
        """Copy an item whose payload is one checksum block at most: models have thousands."""
        address, length = memory.address, memory.length
        crc32 = crc32_of(address, length=length) if self._checksum and length else 0
        head, tail, head_crc32 = b"", b"", 0
        if item.envelope is not None:
            head, head_crc32 = item.envelope.head, item.envelope.head_crc32
            tail = item.envelope.tail_with(crc32)
        self._stream.append(head)
        self._stream.append_memory(address=address, length=length)
        self._stream.append(tail)
        self._footer.put(
            self._shard.placements[index],
            index=index,
            head_crc32=head_crc32,
            tail_crc32=crc32_of_bytes(tail),
            first_block=self._shard.first_blocks[index],
            block_crc32s=(crc32,) if length else (),
        )

    def _write_bytes(self, write: ItemWrite, planner: SavePlanner) -> None:
        """Write a byte item that is large or not held."""
        self._hold(write)
        data = byte_item_data(write.item, planner)
        self._write_memory(write, memory_of(data), keep=data)

    def _write_tensor(self, write: ItemWrite, planner: SavePlanner) -> None:
        """Write a tensor that is large or not held: head, payload, tail."""
        item = write.item
        assert item.envelope is not None
        self._hold(write)
        tensor = (
            item.value
            if isinstance(item.value, torch.Tensor)
            else resolve_tensor(item.write_item, planner)
        )
        form, copied = form_of(tensor), is_copied(tensor)
        if form != item.envelope.form or copied != (item.remainder is None):
            raise UnsupportedError(
                f"{item.fqn}: the planner gave {item.envelope.form} at first, now it gives {form}:"
                " resolve_data has to be repeatable"
            )
        gpu = accelerator_of(tensor)
        memory = memory_of(tensor) if gpu is None and is_dense(tensor) else None
        if copied and memory is not None:
            self._write_small(write.index, item, memory=memory)
            return
        self._stream.append(item.envelope.head)
        if memory is not None:
            self._write_memory(write, memory, keep=tensor)
        else:
            checksum, offset = self._item_checksum(write), write.placement.payload.offset
            if gpu is None:
                append_packed(self._stream, tensor, checksum, offset=offset, summed=self._checksum)
            else:
                append_staged(
                    self._stream, tensor, checksum, gpu=gpu, offset=offset, summed=self._checksum
                )
        write.tail = self._stream.reserve(len(item.envelope.tail))
        self._fill_tail(write)

    def _write_memory(self, write: ItemWrite, memory: MemoryRange, *, keep: object) -> None:
        """Write a payload from its memory: the body by transfers, the edges through the seam."""
        payload, body = write.placement.payload, write.placement.body
        checksum = self._item_checksum(write)

        def count(completion: Completion) -> None:
            transfer = completion.transfer
            checksum.add(Extent(transfer.offset, transfer.length), completion.crc32 or 0)

        def address_at(offset: int) -> int:
            return memory.address + (offset - payload.offset)

        front = Extent(
            payload.offset, (body.offset if body.length else payload.end) - payload.offset
        )
        self._append(checksum, front, address=memory.address)
        if not body.length:
            return
        self._stream.skip(body)
        for piece in checksum.split(body, length_max=self._transfer_bytes):
            transfer = Transfer(
                Operation.WRITE,
                self._file,
                address_at(piece.offset),
                piece.length,
                piece.offset,
                checksum=self._checksum,
            )
            self._queue.submit(transfer, count, keep=keep)
        back = Extent(body.end, payload.end - body.end)
        self._append(checksum, back, address=address_at(body.end))

    def _append(self, checksum: ItemChecksum, extent: Extent, *, address: int) -> None:
        """Copy an extent of a payload into the seam and count it."""
        append_payload(self._stream, checksum, extent, address=address, summed=self._checksum)

    def _item_checksum(self, write: ItemWrite) -> ItemChecksum:
        """Start to collect the checksums of an item."""
        return ItemChecksum(
            block_extents(
                write.placement.payload,
                alignment=self._shard.alignment,
                block_length=self._shard.block_length,
            ),
            when_done=lambda checksum: self._finish_item(write, checksum),
        )

    def _finish_item(self, write: ItemWrite, checksum: PayloadChecksum) -> None:
        """Note that a payload is done."""
        write.checksum = checksum
        self._held -= write.held
        if write.item.envelope is None:
            self._add_to_footer(write, head_crc32=0, tail_crc32=0)
        else:
            self._fill_tail(write)

    def _fill_tail(self, write: ItemWrite) -> None:
        """Fill in the tail once it has its place and the payload's checksum is known."""
        if write.tail is not None and write.checksum is not None:
            write.tail.fill(self._finished_tail(write))

    def _finished_tail(self, write: ItemWrite) -> bytes:
        """The tail with the payload's checksum; notes the item for the footer."""
        envelope = write.item.envelope
        assert envelope is not None
        assert write.checksum is not None
        tail = envelope.tail_with(write.checksum.crc32)
        # Two more checksums cost next to nothing and tell a reader what the head is: always there.
        self._add_to_footer(write, head_crc32=envelope.head_crc32, tail_crc32=crc32_of_bytes(tail))
        return tail

    def _add_to_footer(self, write: ItemWrite, *, head_crc32: int, tail_crc32: int) -> None:
        """Note an item for the footer."""
        assert write.checksum is not None
        self._footer.put(
            write.placement,
            index=write.index,
            head_crc32=head_crc32,
            tail_crc32=tail_crc32,
            first_block=write.first_block,
            block_crc32s=write.checksum.block_crc32s,
        )

    def _hold(self, write: ItemWrite) -> None:
        """Before a transient value is resolved again, wait until those in flight leave room."""
        if not write.item.transient:
            return
        write.held = write.item.payload_length
        while self._held and self._held + write.held > self._held_bytes_max:
            if not self._stream.settle():
                raise AssertionError("values are held that nothing in flight will release")
        self._held += write.held
