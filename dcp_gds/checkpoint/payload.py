"""Payload: its bytes on their way into a seam, from host memory or from a GPU's."""

from __future__ import annotations

import torch

from dcp_gds.checkpoint.itemchecksum import ItemChecksum
from dcp_gds.checkpoint.packing import packed_pieces
from dcp_gds.checkpoint.saveitem import is_dense
from dcp_gds.format.extent import Extent
from dcp_gds.io.checksum import crc32_of
from dcp_gds.io.device import Accelerator, MemoryRange
from dcp_gds.io.seam import SeamStream

__all__ = ["append_packed", "append_payload", "append_staged"]

# A piece of a packed tensor is small enough to be in cache still when it is summed and copied; on a
# GPU it takes memory until it has been copied.
_PIECE_BYTES = 256 << 10


def append_payload(
    stream: SeamStream, checksum: ItemChecksum, extent: Extent, *, address: int, summed: bool
) -> None:
    """Copy an extent of a payload from host memory, and count it; with CRC-32s if `summed`."""
    if not extent.length:
        return
    for piece in checksum.split(extent, length_max=extent.length):
        source = address + (piece.offset - extent.offset)
        stream.append_memory(address=source, length=piece.length)
        checksum.add(piece, crc32_of(source, length=piece.length) if summed else 0)


def append_packed(
    stream: SeamStream, tensor: torch.Tensor, checksum: ItemChecksum, *, offset: int, summed: bool
) -> None:
    """Copy a payload of host memory whose elements have to be put together, from `offset` on."""
    for piece in packed_pieces(tensor, bytes_max=_PIECE_BYTES):
        extent = Extent(offset, piece.nbytes)
        append_payload(stream, checksum, extent, address=piece.data_ptr(), summed=summed)
        offset += piece.nbytes


def append_staged(
    stream: SeamStream,
    tensor: torch.Tensor,
    checksum: ItemChecksum,
    *,
    gpu: Accelerator,
    offset: int,
    summed: bool,
) -> None:
    """Queue the copies of a tensor's payload, which begins at `offset` of the file.

    The tensor, and what it is packed into, are kept until they have been copied: the kernels that
    pack it are only queued too.

    Parameters
    ----------
    summed
        Whether to compute CRC-32s, in the slots, before they are written.
    """
    # What the planner has queued to make the tensor has to be done first.
    gpu.wait_producer()
    pieces = [tensor] if is_dense(tensor) else packed_pieces(tensor, bytes_max=_PIECE_BYTES)
    for piece in pieces:
        memory = gpu.memory(piece)
        whole = Extent(offset, memory.length)
        for extent in checksum.split(whole, length_max=max(1, memory.length)):
            _append_extent(
                stream,
                gpu,
                checksum,
                extent,
                address=memory.address + (extent.offset - offset),
                keep=(tensor, piece),
                summed=summed,
            )
        offset += memory.length


def _append_extent(
    stream: SeamStream,
    gpu: Accelerator,
    checksum: ItemChecksum,
    extent: Extent,
    *,
    address: int,
    keep: object,
    summed: bool,
) -> None:
    """Queue the copies of an extent, which lies within one checksum block."""
    done = 0
    while done < extent.length:
        start = extent.offset + done

        def count(copied: MemoryRange, start: int = start, _keep: object = keep) -> None:
            crc32 = crc32_of(copied.address, length=copied.length) if summed else 0
            checksum.add(Extent(start, copied.length), crc32)

        done += stream.append_device(
            gpu.stream,
            address=address + done,
            length=extent.length - done,
            when_copied=count,
        )
