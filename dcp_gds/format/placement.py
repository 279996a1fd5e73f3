"""Placement: where each item of a shard file lies, as pure arithmetic.

The payload of a large tensor is placed congruently: its file offset and its address in memory leave
the same remainder modulo the alignment. All whole blocks in between, the body, can then go from the
tensor's memory to the drive with nothing copied. Everything outside bodies is a seam and is
assembled in aligned buffers.

Worked example, alignment 4096, head of 704 bytes, a tensor of 10,000 bytes at address 0x7000_0040
(remainder 64): the item begins at 3456, the payload at 4160 = 4096 + 64, the body is [8192, 12288),
and the payload ends at 14160.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dcp_gds.format.extent import Extent, round_down, round_up

__all__ = ["ItemSize", "Layout", "Placement", "Placements", "place_items"]

# torch.save aligns a payload to 64 bytes inside its archive; an archive that begins on such a
# boundary keeps that.
_ITEM_ALIGNMENT = 64


# Named tuples of integers: models have tens of thousands of items, and making a frozen dataclass
# with extents inside took longer than everything else that placement does.
class ItemSize(NamedTuple):
    """What placement needs to know of an item.

    Parameters
    ----------
    head_length, payload_length, tail_length
        Bytes. A byte item has neither head nor tail.
    remainder
        The payload's address modulo the alignment, when it is to be written from its own memory.
        None when it is copied through a seam, where every offset is as good as another.
    """

    head_length: int
    payload_length: int
    tail_length: int
    remainder: int | None


class Placement(NamedTuple):
    """Where one item lies; all in bytes of the file.

    Parameters
    ----------
    offset, length
        The whole item.
    payload_offset, payload_length
        The tensor's bytes in it, or all of a byte item.
    body_offset, body_length
        The whole blocks of the payload; none for an item that is copied through a seam.
    """

    offset: int
    length: int
    payload_offset: int
    payload_length: int
    body_offset: int
    body_length: int

    @property
    def item(self) -> Extent:
        """The whole item."""
        return Extent(self.offset, self.length)

    @property
    def payload(self) -> Extent:
        """The tensor's bytes, or all of a byte item."""
        return Extent(self.payload_offset, self.payload_length)

    @property
    def body(self) -> Extent:
        """The payload's whole blocks."""
        return Extent(self.body_offset, self.body_length)


class Placements:
    """The placements of a file's items, in file order.

    They are kept as plain tuples of integers, which the garbage collector stops to watch: tens of
    thousands of objects that live on bring about full collections, a quarter of a second each.
    """

    def __init__(self, placements: Iterable[Placement]) -> None:
        self._rows: Sequence[tuple[int, ...]] = [tuple(placement) for placement in placements]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Placement:
        return Placement._make(self._rows[index])

    def __iter__(self) -> Iterator[Placement]:
        return map(Placement._make, self._rows)


class Layout(NamedTuple):
    """Placements in file order, and the offset of the first byte behind the last item."""

    placements: Placements
    end: int


def place_items(sizes: Iterable[ItemSize], *, alignment: int) -> Layout:
    """Place items one behind the other, in the given order.

    Parameters
    ----------
    sizes
        The items in file order. Items that are copied belong together and first: then they form
        few, long seams.
    alignment
        Placement alignment in bytes, a power of two of at least 64.

    Returns
    -------
    Layout
        Items ascend and do not overlap; a body's offset and length are multiples of `alignment`.
        The padding costs less than one block for each item with a body, and less than 64 bytes for
        each other.
    """
    assert alignment >= _ITEM_ALIGNMENT
    assert alignment & (alignment - 1) == 0
    position = 0

    def place_all() -> Iterator[Placement]:
        nonlocal position
        for size in sizes:
            placement = _place(size, position=position, alignment=alignment)
            position = placement.offset + placement.length
            yield placement

    return Layout(Placements(place_all()), position)


def _place(size: ItemSize, *, position: int, alignment: int) -> Placement:
    """Place one item at or behind `position`."""
    head_length, payload_length, tail_length, remainder = size
    length = head_length + payload_length + tail_length
    if remainder is None:
        start = round_up(position, alignment=_ITEM_ALIGNMENT)
        payload_offset = start + head_length
        return Placement(start, length, payload_offset, payload_length, payload_offset, 0)
    earliest = position + head_length
    payload_offset = earliest + (remainder - earliest) % alignment
    body_offset = round_up(payload_offset, alignment=alignment)
    body_end = round_down(payload_offset + payload_length, alignment=alignment)
    return Placement(
        payload_offset - head_length,
        length,
        payload_offset,
        payload_length,
        body_offset,
        max(0, body_end - body_offset),
    )
