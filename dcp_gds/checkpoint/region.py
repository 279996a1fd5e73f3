"""Region: bytes of a shard file that have checksums of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import Footer, block_extents
from dcp_gds.io.checksum import crc32_of_zeros

__all__ = ["Region", "RegionKind", "regions_of_footer"]


class RegionKind(StrEnum):
    """What a region is; messages name it so."""

    HEAD = "head"
    PAYLOAD = "payload"
    TAIL = "tail"
    PAD = "zeros between items"
    ENTRY = "zip entry"


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Adjacent blocks of a file, ascending, and the CRC-32 of each."""

    kind: RegionKind
    blocks: tuple[Extent, ...]
    crc32s: tuple[int, ...]
    fqn: str | None = None

    @property
    def extent(self) -> Extent:
        """From the first block to the last."""
        return Extent(self.blocks[0].offset, self.blocks[-1].end - self.blocks[0].offset)


def regions_of_footer(
    footer: Footer, *, fqns: Mapping[Extent, str], items_end: int, payloads: bool
) -> Iterator[Region]:
    """Everything in a file that its footer tells of; none is empty.

    Parameters
    ----------
    fqns
        Names of the items, by their extents.
    items_end
        Where the footer begins.
    payloads
        Whether the payloads are wanted; without checksums in the footer there are none.
    """
    position = 0
    for item in footer.items:
        extent, payload = item.extent, item.payload
        fqn = fqns.get(extent)
        yield from _region(RegionKind.PAD, position, extent.offset)
        yield from _region(RegionKind.HEAD, extent.offset, payload.offset, item.head_crc32, fqn)
        if payloads and footer.checksums and payload.length:
            blocks = block_extents(
                payload, alignment=footer.alignment, block_length=footer.block_length
            )
            yield Region(RegionKind.PAYLOAD, tuple(blocks), item.block_crc32s, fqn)
        yield from _region(RegionKind.TAIL, payload.end, extent.end, item.tail_crc32, fqn)
        position = extent.end
    yield from _region(RegionKind.PAD, position, items_end)


def _region(
    kind: RegionKind, start: int, end: int, crc32: int | None = None, fqn: str | None = None
) -> Iterator[Region]:
    """One region of one block, of zeros if no checksum is given; none if it is empty."""
    if end > start:
        expected = crc32_of_zeros(end - start) if crc32 is None else crc32
        yield Region(kind, (Extent(start, end - start),), (expected,), fqn)
