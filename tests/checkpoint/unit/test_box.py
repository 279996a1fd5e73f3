"""Boxes are cut right: bytes of slabs and covers are compared with those of each element."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.checkpoint.box import Box, Slab, cover_blocks
from dcp_gds.format.extent import Extent


@st.composite
def nested_boxes(draw: st.DrawFn) -> Box:
    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    sizes, strides = [], []
    inner = itemsize
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.integers(1, 5))
        stride = inner + itemsize * draw(st.sampled_from([0, 0, 1, 3, 40]))
        sizes.append(size)
        strides.append(stride)
        inner = (size - 1) * stride + inner
    order = draw(st.permutations(range(len(sizes))))
    return Box(tuple(sizes[i] for i in order), tuple(strides[i] for i in order), itemsize)


def element_offsets(sizes: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    ranges = (range(size) for size in sizes)
    return [
        sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in itertools.product(*ranges)
    ]


@given(nested_boxes(), st.integers(8, 400), st.integers(0, 100))
def test_slabs_hold_every_element_once(box: Box, bytes_max: int, gap_max: int) -> None:
    slabs = list(box.slabs(bytes_max=bytes_max, gap_max=gap_max))
    seen = []
    position = 0
    for slab in slabs:
        assert slab.offset >= position
        position = slab.offset + slab.length
        assert slab.length <= max(bytes_max, box.itemsize)
        offsets = element_offsets(slab.sizes, box.strides)
        assert max(offsets) + box.itemsize == slab.length
        seen += [slab.offset + offset for offset in offsets]
    assert sorted(seen) == sorted(element_offsets(box.sizes, box.strides))
    assert box.length == len(seen) * box.itemsize
    assert box.span == max(seen) + box.itemsize


@given(nested_boxes())
def test_nested_boxes_are_recognised(box: Box) -> None:
    assert box.is_nested


def test_overlapping_strides_are_recognised() -> None:
    assert not Box((3, 2), (4, 4), 4).is_nested
    assert not Box((3,), (0,), 4).is_nested
    assert Box((3, 1), (4, 0), 4).is_nested


def test_wide_gaps_are_not_read() -> None:
    box = Box((3, 2), (1000, 4), 4)
    together = list(box.slabs(bytes_max=10_000, gap_max=1000))
    apart = list(box.slabs(bytes_max=10_000, gap_max=500))
    assert together == [Slab((0, 0), (3, 2), 0, 2008)]
    assert [(slab.offset, slab.length) for slab in apart] == [(0, 8), (1000, 8), (2000, 8)]


def test_no_elements_are_no_slabs() -> None:
    assert list(Box((3, 0), (0, 1), 4).slabs(bytes_max=100, gap_max=0)) == []
    assert Box((3, 0), (0, 1), 4).span == 0


@given(st.data())
def test_covers_are_whole_blocks_and_nothing_twice(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=8))
    offset = data.draw(st.integers(0, 50))
    blocks = []
    for length in lengths:
        blocks.append(Extent(offset, length))
        offset += length
    start, end = blocks[0].offset, blocks[-1].end
    cuts = sorted(data.draw(st.sets(st.integers(start, end), max_size=8)))
    pairs = list(itertools.pairwise(cuts))[::2]
    wanted = [Extent(first, last - first) for first, last in pairs]
    cover = cover_blocks(wanted, blocks)
    read = sorted(byte for extent in [*wanted, *cover.slack] for byte in _bytes(extent))
    touched = [
        index
        for index, block in enumerate(blocks)
        if any(block.offset < w.end and w.offset < block.end for w in wanted)
    ]
    assert list(cover.blocks) == touched
    assert read == sorted(byte for index in touched for byte in _bytes(blocks[index]))


def _bytes(extent: Extent) -> range:
    return range(extent.offset, extent.end)
