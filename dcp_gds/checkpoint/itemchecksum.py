"""Item checksum: the CRC-32 of each checksum block of a payload, put together from pieces."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dcp_gds.format.extent import Extent, round_down
from dcp_gds.io.checksum import crc32_combine

__all__ = ["ItemChecksum", "PayloadChecksum"]


@dataclass(frozen=True, slots=True)
class PayloadChecksum:
    """CRC-32 of each checksum block of a payload, and of the whole."""

    block_crc32s: tuple[int, ...]
    crc32: int


class ItemChecksum:
    """Collects the pieces of one payload, in whatever order they are done.

    Parameters
    ----------
    blocks
        Ascending extents that the pieces will cover, each byte once; a piece lies within one of
        them.
    when_done
        Called once, when the last byte has been counted; at once if there is none.
    """

    def __init__(
        self,
        blocks: Sequence[Extent],
        *,
        when_done: Callable[[PayloadChecksum], None],
    ) -> None:
        self._blocks = blocks
        self._offsets = [block.offset for block in blocks]
        self._missing = sum(block.length for block in blocks)
        self._pieces: dict[int, tuple[int, int]] = {}
        self._when_done = when_done
        if not self._missing:
            when_done(PayloadChecksum((), 0))

    def split(self, extent: Extent, *, length_max: int, alignment: int = 1) -> Iterator[Extent]:
        """Cut an extent into pieces, each within one block and at most so long.

        Cuts inside a block are at multiples of `alignment`, so that no two pieces share a block of
        the filesystem, which would be read twice.
        """
        assert length_max >= alignment
        first = max(bisect_right(self._offsets, extent.offset) - 1, 0)
        for block in itertools.islice(self._blocks, first, None):
            if block.offset >= extent.end:
                break
            offset = max(block.offset, extent.offset)
            end = min(block.end, extent.end)
            while offset < end:
                cut = min(end, round_down(offset + length_max, alignment=alignment))
                yield Extent(offset, cut - offset)
                offset = cut

    def add(self, piece: Extent, crc32: int) -> None:
        """Count a piece."""
        assert piece.offset not in self._pieces
        self._pieces[piece.offset] = (piece.length, crc32)
        self._missing -= piece.length
        assert self._missing >= 0
        if not self._missing:
            self._when_done(self._combine())

    def _combine(self) -> PayloadChecksum:
        """Put the pieces together, in the order of the file."""
        block_crc32s = []
        total = 0
        for block in self._blocks:
            value, offset = 0, block.offset
            while offset < block.end:
                length, crc32 = self._pieces[offset]
                value = crc32_combine(value, crc32, second_length=length)
                offset += length
            assert offset == block.end
            block_crc32s.append(value)
            total = crc32_combine(total, value, second_length=block.length)
        return PayloadChecksum(tuple(block_crc32s), total)
