"""Shard layout: where everything in a shard file goes, known before its first byte is written."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dcp_gds.checkpoint.saveitem import SaveItem
from dcp_gds.format.extent import Extent, round_up
from dcp_gds.format.footer import block_count, footer_length
from dcp_gds.format.placement import Placements, place_items

__all__ = ["ShardLayout", "lay_out"]

_FOOTER_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Items and their places.

    Parameters
    ----------
    items, placements
        In file order, one placement an item.
    first_blocks
        Number of each item's first checksum block in the file, and last the number of all blocks.
    footer
        The file ends with it.
    alignment
        Placement alignment in bytes.
    block_length
        Length of a payload's checksum blocks in bytes.
    """

    items: tuple[SaveItem, ...]
    placements: Placements
    first_blocks: tuple[int, ...]
    footer: Extent
    alignment: int
    block_length: int

    @property
    def file_length(self) -> int:
        """Bytes of the finished file."""
        return self.footer.end

    @property
    def allocated_length(self) -> int:
        """Bytes that are written: whole blocks."""
        return round_up(self.footer.end, alignment=self.alignment)


def lay_out(items: list[SaveItem], *, alignment: int, block_length: int) -> ShardLayout:
    """Place items, one behind the other, and the footer behind them."""
    layout = place_items((item.size for item in items), alignment=alignment)
    counts = (
        block_count(placement.payload, alignment=alignment, block_length=block_length)
        for placement in layout.placements
    )
    first_blocks = tuple(itertools.accumulate(counts, initial=0))
    offset = round_up(layout.end, alignment=_FOOTER_ALIGNMENT)
    footer = Extent(offset, footer_length(item_count=len(items), block_count=first_blocks[-1]))
    return ShardLayout(
        tuple(items), layout.placements, first_blocks, footer, alignment, block_length
    )
