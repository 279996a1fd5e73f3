"""Item checksums equal zlib's, whatever the pieces and their order: hypothesis draws both."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.checkpoint.itemchecksum import ItemChecksum, PayloadChecksum
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import block_extents


@given(
    st.integers(0, 5000),
    st.integers(0, 40_000),
    st.integers(512, 9000),
    st.randoms(use_true_random=False),
)
def test_pieces_make_the_checksums_of_blocks_and_whole(
    offset: int, length: int, length_max: int, order: random.Random
) -> None:
    payload = Extent(offset, length)
    blocks = block_extents(payload, alignment=512, block_length=8192)
    content = order.randbytes(offset + length)
    done: list[PayloadChecksum] = []
    checksum = ItemChecksum(blocks, when_done=done.append)
    pieces = list(checksum.split(payload, length_max=length_max, alignment=512))
    assert sum(piece.length for piece in pieces) == length
    assert all(piece.length <= length_max for piece in pieces)
    assert all(
        piece.end % 512 == 0 or piece.end in {block.end for block in blocks} for piece in pieces
    )
    order.shuffle(pieces)
    for piece in pieces:
        assert not done
        checksum.add(piece, zlib.crc32(content[piece.offset : piece.end]))
    (result,) = done
    assert result.crc32 == zlib.crc32(content[offset:])
    expected = [zlib.crc32(content[block.offset : block.end]) for block in blocks]
    assert list(result.block_crc32s) == expected


def test_a_piece_counts_once() -> None:
    checksum = ItemChecksum([Extent(0, 10)], when_done=lambda _: None)
    checksum.add(Extent(0, 5), 0)
    with pytest.raises(AssertionError):
        checksum.add(Extent(0, 5), 0)
