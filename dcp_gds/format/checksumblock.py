"""Checksum block: the part of a payload that has one CRC-32 in the footer."""

from __future__ import annotations

import itertools

from dcp_gds.format.extent import Extent, round_up

__all__ = ["block_count", "block_extents"]


def block_extents(payload: Extent, *, alignment: int, block_length: int) -> list[Extent]:
    """Return the checksum blocks of a payload; together they are the payload.

    Blocks are counted from the first whole placement block on, so that they lie in the file as
    transfers do. The bytes before belong to the first block, and a remainder that is shorter than
    `alignment` to the last one: the unaligned edges of a payload make no blocks of their own.

    Examples
    --------
    >>> blocks = block_extents(Extent(4160, 20480), alignment=4096, block_length=8192)
    >>> [(block.offset, block.length) for block in blocks]
    [(4160, 12224), (16384, 8256)]
    """
    if payload.length == 0:
        return []
    count = block_count(payload, alignment=alignment, block_length=block_length)
    if count == 1:
        return [payload]
    body_start = round_up(payload.offset, alignment=alignment)
    bounds = [
        payload.offset,
        *range(body_start + block_length, body_start + count * block_length, block_length),
        payload.end,
    ]
    return [Extent(start, end - start) for start, end in itertools.pairwise(bounds)]


def block_count(payload: Extent, *, alignment: int, block_length: int) -> int:
    """Return the number of checksum blocks of a payload."""
    if payload.length == 0:
        return 0
    # With S bytes from the body's start on, k * block_length begins a block if k >= 1 and at least
    # `alignment` of the S bytes lie behind it: k = 1 .. (S - alignment) // block_length.
    span = payload.end - round_up(payload.offset, alignment=alignment)
    return 1 + max(0, (span - alignment) // block_length)
