"""Box: a hyper-rectangle of a stored tensor, and the byte ranges that hold it. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dcp_gds.format.extent import Extent

__all__ = ["Box", "Cover", "Slab", "cover_blocks"]


@dataclass(frozen=True, slots=True)
class Slab:
    """A part of a box whose elements lie within one range of bytes.

    `starts` and `sizes` are in the box's dimensions; `offset` counts bytes from the box's first
    element.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Box:
    """Sizes in elements, strides in bytes, and the bytes of one element."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def length(self) -> int:
        """Bytes of the elements themselves."""
        total = self.itemsize
        for size in self.sizes:
            total *= size
        return total

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        return _span(self.sizes, self.strides, self.itemsize)

    @property
    def is_nested(self) -> bool:
        """Whether each dimension lies inside the gaps of a longer stride: nothing overlaps."""
        inner = self.itemsize
        for dim in reversed(self._dims_by_stride()):
            if self.strides[dim] < inner:
                return False
            inner = (self.sizes[dim] - 1) * self.strides[dim] + inner
        return True

    def slabs(self, *, bytes_max: int, gap_max: int) -> Iterator[Slab]:
        """Cut a nested box into slabs of at most `bytes_max`, ascending and without overlap.

        A dimension whose rows lie more than `gap_max` bytes apart is cut row by row, so that the
        gaps need not be read.
        """
        if self.length:
            yield from self._cut(
                self._dims_by_stride(), [0] * len(self.sizes), list(self.sizes), bytes_max, gap_max
            )

    def _dims_by_stride(self) -> list[int]:
        """Dimensions of more than one element, longest stride first."""
        dims = [dim for dim, size in enumerate(self.sizes) if size > 1]
        return sorted(dims, key=lambda dim: -self.strides[dim])

    def _cut(
        self, dims: list[int], starts: list[int], sizes: list[int], bytes_max: int, gap_max: int
    ) -> Iterator[Slab]:
        """Yield the slabs of one sub-box; `dims` are those with more than one element left."""
        span = _span(sizes, self.strides, self.itemsize)
        wide = self._has_wide_gap(dims, sizes, gap_max)
        if not dims or (span <= bytes_max and not wide):
            yield self._slab(starts, sizes, span)
            return
        dim, rest = dims[0], dims[1:]
        stride = self.strides[dim]
        row = span - (sizes[dim] - 1) * stride
        # `count` rows span (count - 1) strides and one row.
        step = 1 if wide or row > bytes_max else 1 + (bytes_max - row) // stride
        for start in range(0, sizes[dim], step):
            sub_starts, sub_sizes = starts.copy(), sizes.copy()
            sub_starts[dim], sub_sizes[dim] = start, min(step, sizes[dim] - start)
            # More than one row fits as it is; a single one may have to be cut further.
            sub_dims = rest if step == 1 else [dim, *rest]
            yield from self._cut(sub_dims, sub_starts, sub_sizes, bytes_max, gap_max)

    def _has_wide_gap(self, dims: list[int], sizes: list[int], gap_max: int) -> bool:
        """Whether rows of one of these dimensions lie far apart."""
        inner = self.itemsize
        for dim in reversed(dims):
            if self.strides[dim] - inner > gap_max:
                return True
            inner += (sizes[dim] - 1) * self.strides[dim]
        return False

    def _slab(self, starts: list[int], sizes: list[int], span: int) -> Slab:
        """A slab, with its place."""
        offset = sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        return Slab(tuple(starts), tuple(sizes), offset, span)


@dataclass(frozen=True, slots=True)
class Cover:
    """Indexes of the blocks that some extents touch, and what of them lies outside the extents."""

    blocks: tuple[int, ...]
    slack: tuple[Extent, ...]


def cover_blocks(wanted: Sequence[Extent], blocks: Sequence[Extent]) -> Cover:
    """Round extents out to whole checksum blocks.

    Parameters
    ----------
    wanted
        Ascending, without overlap, none empty, all within the blocks.
    blocks
        Ascending and adjacent.
    """
    offsets = [block.offset for block in blocks]
    touched: list[int] = []
    slack: list[Extent] = []
    position = 0
    for extent in wanted:
        first = bisect_left(offsets, extent.offset + 1) - 1
        last = bisect_left(offsets, extent.end) - 1
        if not touched or first > touched[-1]:
            # The rest of the last block is slack, and so is the front of this extent's.
            if touched:
                slack.append(_between(position, blocks[touched[-1]].end))
            position = blocks[first].offset
            touched.append(first)
        slack.append(_between(position, extent.offset))
        touched.extend(range(touched[-1] + 1, last + 1))
        position = extent.end
    if touched:
        slack.append(_between(position, blocks[touched[-1]].end))
    return Cover(tuple(touched), tuple(extent for extent in slack if extent.length))


def _between(start: int, end: int) -> Extent:
    """The extent from one offset to another."""
    return Extent(start, end - start)


def _span(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes from the first element to the end of the last; 0 for no elements."""
    if 0 in sizes:
        return 0
    return itemsize + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
