"""Placement keeps its promises for any sizes: hypothesis draws items, arithmetic checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.format.extent import Extent, round_down, round_up
from dcp_gds.format.placement import ItemSize, place_items

ALIGNMENTS = st.sampled_from([512, 4096, 65536])


@st.composite
def sizes(draw: st.DrawFn, alignment: int) -> list[ItemSize]:
    copied = st.builds(
        ItemSize,
        st.sampled_from([0, 704, 768]),
        st.integers(0, 3 * alignment),
        st.sampled_from([0, 853, 925]),
        st.none(),
    )
    placed = st.builds(
        ItemSize,
        st.sampled_from([0, 704, 1234]),
        st.integers(0, 5 * alignment),
        st.sampled_from([0, 873]),
        st.integers(0, alignment - 1),
    )
    return draw(st.lists(copied | placed, max_size=12))


@given(st.data(), ALIGNMENTS)
def test_items_ascend_and_payloads_are_congruent(data: st.DataObject, alignment: int) -> None:
    items = data.draw(sizes(alignment))
    layout = place_items(items, alignment=alignment)
    position = 0
    for item, placement in zip(items, layout.placements, strict=True):
        assert placement.item.offset >= position
        gap = placement.item.offset - position
        assert gap < (64 if item.remainder is None else alignment)
        assert placement.payload.offset == placement.item.offset + item.head_length
        assert placement.payload.length == item.payload_length
        assert placement.item.end == placement.payload.end + item.tail_length
        if item.remainder is None:
            assert placement.body.length == 0
            assert placement.item.offset % 64 == 0
        else:
            assert placement.payload.offset % alignment == item.remainder
        position = placement.item.end
    assert layout.end == position


@given(st.data(), ALIGNMENTS)
def test_a_body_is_all_whole_blocks_of_its_payload(data: st.DataObject, alignment: int) -> None:
    for placement in place_items(data.draw(sizes(alignment)), alignment=alignment).placements:
        body, payload = placement.body, placement.payload
        if not body.length:
            continue
        assert body.offset % alignment == body.length % alignment == 0
        assert payload.offset <= body.offset < payload.offset + alignment
        assert body.end <= payload.end < body.end + alignment


def test_worked_example() -> None:
    layout = place_items([ItemSize(704, 10_000, 873, 64)], alignment=4096)
    (placement,) = layout.placements
    assert placement.item == Extent(3456, 704 + 10_000 + 873)
    assert placement.payload == Extent(4160, 10_000)
    assert placement.body == Extent(8192, 4096)


@given(st.integers(0, 1 << 60), st.sampled_from([1, 2, 512, 4096]))
def test_rounding(value: int, alignment: int) -> None:
    down, up = round_down(value, alignment=alignment), round_up(value, alignment=alignment)
    assert down <= value <= up
    assert down % alignment == up % alignment == 0
    assert value - down < alignment
    assert up - value < alignment


@pytest.mark.parametrize("alignment", [32, 4095])
def test_a_wrong_alignment_is_our_own_bug(alignment: int) -> None:
    with pytest.raises(AssertionError):
        place_items([], alignment=alignment)
