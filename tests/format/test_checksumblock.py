"""Checksum blocks tile a payload as the format says: hypothesis draws payloads and blocks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.format.checksumblock import block_count, block_extents
from dcp_gds.format.extent import Extent, round_up


@given(
    offset=st.integers(0, 40_000),
    length=st.integers(0, 60_000),
    alignment=st.sampled_from([1, 512, 4096]),
    factor=st.integers(1, 6),
)
def test_blocks_tile_the_payload(offset: int, length: int, alignment: int, factor: int) -> None:
    payload, block_length = Extent(offset, length), alignment * factor
    blocks = block_extents(payload, alignment=alignment, block_length=block_length)
    assert len(blocks) == block_count(payload, alignment=alignment, block_length=block_length)
    assert sum(block.length for block in blocks) == length
    if not blocks:
        assert length == 0
        return
    assert (blocks[0].offset, blocks[-1].end) == (offset, payload.end)
    body_start = round_up(offset, alignment=alignment)
    for before, after in itertools.pairwise(blocks):
        assert before.end == after.offset
        assert after.offset > body_start
        assert (after.offset - body_start) % block_length == 0
    assert all(block.length == block_length for block in blocks[1:-1])
    assert len(blocks) == 1 or blocks[-1].length >= alignment
    # Neither edge hides a boundary that had to be there.
    assert blocks[0].end - body_start < block_length + alignment
    assert blocks[-1].length < block_length + 2 * alignment
