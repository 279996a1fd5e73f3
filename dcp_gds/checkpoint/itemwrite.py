"""Item write: an item of a shard file on its way to the drive."""

from __future__ import annotations

from dataclasses import dataclass

from dcp_gds.checkpoint.itemchecksum import PayloadChecksum
from dcp_gds.checkpoint.saveitem import SaveItem
from dcp_gds.format.placement import Placement
from dcp_gds.io.seam import Reservation

__all__ = ["ItemWrite"]


@dataclass(slots=True, eq=False)
class ItemWrite:
    """What is known of it so far: tail and footer entry wait for the payload's checksums."""

    index: int
    item: SaveItem
    placement: Placement
    first_block: int
    tail: Reservation | None = None
    checksum: PayloadChecksum | None = None
    held: int = 0
