"""Load item: a read item together with where its bytes are and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.checkpoint.planner import ReadItem

from dcp_gds.checkpoint.box import Box
from dcp_gds.format.archive import StoredTensor
from dcp_gds.format.extent import Extent

__all__ = ["Checks", "LoadItem", "Place"]


@dataclass(frozen=True, slots=True)
class Checks:
    """What a payload can be compared with.

    Parameters
    ----------
    blocks, block_crc32s
        Extents in the file, ascending and adjacent, and the CRC-32 of each.
    partial
        Whether reading may be rounded out to `blocks`. A stock archive has one CRC-32 for a whole
        payload, which is compared only when all of it is read anyway.
    """

    blocks: tuple[Extent, ...]
    block_crc32s: tuple[int, ...]
    partial: bool


@dataclass(frozen=True, slots=True)
class Place:
    """What is asked for of a stored tensor: a box that begins `offset` bytes into the payload."""

    box: Box
    offset: int


@dataclass(frozen=True, slots=True)
class LoadItem:
    """What must be known of a read item before its bytes are read.

    Parameters
    ----------
    item, payload
        Extents in the shard file; the same for a byte item.
    checks
        None if the payload cannot be verified.
    stored, place
        The tensor that the payload holds, and what of it is asked for; None for a byte item.
    transform_descriptors
        DCP's stream extensions that the item went through; the payload's place is unknown then.
    """

    read_item: ReadItem
    item: Extent
    payload: Extent
    checks: Checks | None
    stored: StoredTensor | None
    place: Place | None
    transform_descriptors: tuple[str, ...] = ()

    @property
    def fqn(self) -> str:
        """Fully qualified name in the checkpoint."""
        return str(self.read_item.storage_index.fqn)

    @property
    def length(self) -> int:
        """Payload bytes that are asked for."""
        return self.payload.length if self.place is None else self.place.box.length

    @property
    def extent(self) -> Extent:
        """From the first to the last byte that is asked for."""
        if self.place is None:
            return self.payload
        return Extent(self.payload.offset + self.place.offset, self.place.box.span)
