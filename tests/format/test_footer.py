"""A footer comes back as it was or not at all: round trips, damage to each byte, contradictions."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.endrecord import RecordKind, seal
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import (
    FOOTER_TAIL_LENGTH,
    Footer,
    FooterItem,
    block_extents,
    decode_footer,
    footer_crc32,
    footer_length,
    parse_footer_tail,
)
from tests.format.footers import encode_footer

PATH = "/ckpt/__0_0.distcp"
KIND = RecordKind("footer", b"DCPGDSft", 1)
TOKEN = "0123456789abcdef" * 2
HEADER = struct.Struct("<16s2I4Q")
ITEM = struct.Struct("<4Q2IQ")
CRC32S = st.integers(0, 2**32 - 1)


def make_item(offset: int, *, head: int, payload: int, tail: int, footer: Footer) -> FooterItem:
    place = Extent(offset + head, payload)
    blocks = block_extents(place, alignment=footer.alignment, block_length=footer.block_length)
    crc32s = tuple((offset * 31 + block.offset * 7 + 1) % 2**32 for block in blocks)
    return FooterItem(Extent(offset, head + payload + tail), place, 17 * head, 19 * tail, crc32s)


EMPTY = Footer(TOKEN, 4096, 8192, True, ())
SAMPLE = dataclasses.replace(
    EMPTY,
    items=(
        make_item(0, head=0, payload=5, tail=0, footer=EMPTY),
        make_item(64, head=704, payload=0, tail=873, footer=EMPTY),
        make_item(3456, head=704, payload=30_000, tail=873, footer=EMPTY),
        make_item(40_000, head=0, payload=0, tail=0, footer=EMPTY),
    ),
)
ITEMS_END = 40_000


@st.composite
def footers(draw: st.DrawFn) -> Footer:
    alignment = draw(st.sampled_from([1, 512, 4096]))
    block_length = alignment * draw(st.integers(1, 5))
    empty = Footer(
        draw(st.binary(min_size=16, max_size=16)).hex(), alignment, block_length, True, ()
    )
    items = []
    position = draw(st.sampled_from([0, 1, 2**40]))
    for _ in range(draw(st.integers(0, 6))):
        item = make_item(
            position + draw(st.integers(0, 5000)),
            head=draw(st.sampled_from([0, 704])),
            payload=draw(st.integers(0, 6 * alignment)),
            tail=draw(st.sampled_from([0, 873])),
            footer=empty,
        )
        items.append(item)
        position = item.extent.end
    return dataclasses.replace(empty, checksums=draw(st.booleans()), items=tuple(items))


def read_footer(file: bytes) -> Footer | None:
    """Find and decode the footer of a file, as a reader does."""
    tail = file[-FOOTER_TAIL_LENGTH:]
    extent = parse_footer_tail(tail, file_length=len(file), path=PATH)
    if extent is None:
        return None
    assert extent.end == len(file)
    return decode_footer(file[extent.offset :], file_length=len(file), path=PATH)


@given(footers())
def test_a_footer_comes_back(footer: Footer) -> None:
    encoded = encode_footer(footer)
    blocks = sum(len(item.block_crc32s) for item in footer.items)
    assert len(encoded) == footer_length(item_count=len(footer.items), block_count=blocks)
    items_end = footer.items[-1].extent.end if footer.items else 0
    tail = encoded[-FOOTER_TAIL_LENGTH:]
    file_length = items_end + len(encoded)
    place = parse_footer_tail(tail, file_length=file_length, path=PATH)
    assert place == Extent(items_end, len(encoded))
    assert decode_footer(encoded, file_length=file_length, path=PATH) == footer


@given(footers(), st.randoms(use_true_random=False))
def test_items_may_become_known_in_any_order(footer: Footer, random: Random) -> None:
    order = list(range(len(footer.items)))
    random.shuffle(order)
    assert encode_footer(footer, order=order) == encode_footer(footer)


def test_an_incomplete_footer_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        encode_footer(SAMPLE, order=[0, 1, 3])


def test_the_bytes_are_those_of_the_format() -> None:
    footer = dataclasses.replace(
        EMPTY, items=(FooterItem(Extent(10, 300), Extent(60, 200), 5, 6, (7,)),)
    )
    body = struct.pack("<16s2I4Q", bytes.fromhex(TOKEN), 1, 0, 4096, 8192, 1, 1)
    body += struct.pack("<4Q2IQ", 10, 300, 60, 200, 5, 6, 1) + struct.pack("<I", 7)
    length = len(body) + 32
    first, last = b"DCPGDSft" + struct.pack("<I", 1), struct.pack("<Q", length) + b"DCPGDSft"
    crc32 = struct.pack("<I", zlib.crc32(body + first + last))
    assert encode_footer(footer) == body + first + crc32 + last


@pytest.mark.parametrize("file", [b"", b"PK", b"\0" * 31, b"\0" * 32, b"PK\5\6" * 100])
def test_a_file_without_a_footer_is_a_stock_file(file: bytes) -> None:
    assert read_footer(file) is None


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_damaged_byte_is_found(mask: int) -> None:
    file = bytearray(b"." * ITEMS_END + encode_footer(SAMPLE))
    for position in range(ITEMS_END, len(file)):
        file[position] ^= mask
        with pytest.raises(CorruptCheckpointError) as caught:
            read_footer(bytes(file))
        assert caught.value.path == PATH
        assert caught.value.offset is not None
        file[position] ^= mask
    assert read_footer(bytes(file)) == SAMPLE


def test_a_footer_that_is_cut_off_is_found() -> None:
    encoded = encode_footer(SAMPLE)
    for length in range(len(encoded)):
        with pytest.raises(CorruptCheckpointError):
            decode_footer(encoded[:length], file_length=ITEMS_END + length, path=PATH)
        with pytest.raises(CorruptCheckpointError):
            decode_footer(encoded[-length:] if length else b"", file_length=10**6, path=PATH)


def test_a_file_that_was_cut_off_has_no_footer() -> None:
    file = b"." * ITEMS_END + encode_footer(SAMPLE)
    # 24 bytes: the end record's first magic has come to lie where the last one was.
    damaged = len(file) - 24
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        read_footer(file[:damaged])
    for length in set(range(ITEMS_END, len(file))) - {damaged}:
        assert read_footer(file[:length]) is None


def test_a_footer_longer_than_its_file_is_found() -> None:
    encoded = encode_footer(SAMPLE)
    for file_length in (FOOTER_TAIL_LENGTH, len(encoded) - 1):
        with pytest.raises(CorruptCheckpointError, match="claims"):
            parse_footer_tail(encoded[-FOOTER_TAIL_LENGTH:], file_length=file_length, path=PATH)
        with pytest.raises(CorruptCheckpointError, match="the file only"):
            decode_footer(encoded, file_length=file_length, path=PATH)


def test_items_have_to_lie_in_front_of_the_footer() -> None:
    encoded = encode_footer(SAMPLE)
    with pytest.raises(CorruptCheckpointError, match="an item ends at 40000"):
        decode_footer(encoded, file_length=ITEMS_END + len(encoded) - 1, path=PATH)


def replaced(**changes: int) -> Callable[[bytearray], None]:
    """Return a change of one or more fields of the header."""
    fields = ("flags", "zero", "alignment", "block_length", "item_count", "block_count")

    def change(body: bytearray) -> None:
        token, *values = HEADER.unpack_from(body)
        given = dict(zip(fields, values, strict=True)) | changes
        HEADER.pack_into(body, 0, token, *given.values())

    return change


def item_replaced(index: int, position: int, value: int) -> Callable[[bytearray], None]:
    """Return a change of one field of one item."""

    def change(body: bytearray) -> None:
        offset = HEADER.size + index * ITEM.size
        values = list(ITEM.unpack_from(body, offset))
        values[position] = value
        ITEM.pack_into(body, offset, *values)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced(flags=2), "unknown flags"),
        (replaced(zero=1), "unknown flags"),
        (replaced(alignment=0), "power of two"),
        (replaced(alignment=3), "power of two"),
        (replaced(block_length=0), "multiple"),
        (replaced(block_length=4097), "multiple"),
        (replaced(item_count=3), "with 3 items and 4 blocks"),
        (replaced(item_count=2**61), "items"),
        (replaced(block_count=2**64 - 1), "items"),
        # Counts that fit the length together: one item fewer, twelve blocks more.
        (replaced(item_count=3, block_count=16), "the items have 4 blocks, the footer 16"),
        (item_replaced(1, 0, 4), "before the end of the last one"),
        (item_replaced(0, 1, 100), "before the end of the last one"),
        (item_replaced(2, 2, 3455), "reaches out"),
        (item_replaced(2, 3, 2**64 - 1), "reaches out"),
        (item_replaced(0, 1, 4), "reaches out"),
        (item_replaced(2, 6, 2), "2 blocks, expected 3"),
        (item_replaced(2, 3, 20_000), "3 blocks, expected 2"),
        (item_replaced(3, 0, 2**63), "reaches out"),
        (bytearray.clear, "before its end record"),
    ],
)
def test_a_contradiction_is_found_whatever_its_checksum(
    change: Callable[[bytearray], None], message: str
) -> None:
    body = bytearray(encode_footer(SAMPLE)[:-FOOTER_TAIL_LENGTH])
    change(body)
    encoded = seal(bytes(body), kind=KIND)
    with pytest.raises(CorruptCheckpointError, match=message):
        decode_footer(encoded, file_length=ITEMS_END + len(encoded), path=PATH)


def test_another_version_is_not_called_damage() -> None:
    body = encode_footer(SAMPLE)[:-FOOTER_TAIL_LENGTH]
    encoded = seal(body, kind=dataclasses.replace(KIND, version=2))
    with pytest.raises(UnsupportedError, match=r"__0_0\.distcp.* version 2, .* reads 1"):
        decode_footer(encoded, file_length=ITEMS_END + len(encoded), path=PATH)


@given(st.binary(max_size=300), st.integers(0, 1000))
def test_garbage_is_refused(data: bytes, before: int) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_footer(data, file_length=before + len(data), path=PATH)


@given(st.binary(max_size=200), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_garbage_with_a_right_checksum_is_refused_or_means_what_it_says(
    rest: bytes, numbers: list[int]
) -> None:
    header = HEADER.pack(bytes(16), 1, 0, *numbers)
    encoded = seal(header + rest, kind=KIND)
    try:
        footer = decode_footer(encoded, file_length=2**50, path=PATH)
    except CorruptCheckpointError:
        return
    assert encode_footer(footer) == encoded


def test_a_claim_of_many_items_allocates_nothing() -> None:
    body = bytearray(encode_footer(EMPTY)[:-FOOTER_TAIL_LENGTH])
    replaced(item_count=2**40, block_count=2**40)(body)
    encoded = seal(bytes(body), kind=KIND)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError):
            decode_footer(encoded, file_length=2**60, path=PATH)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.lists(CRC32S, min_size=2, max_size=2, unique=True))
def test_the_checksum_of_a_footer_tells_footers_apart(crc32s: list[int]) -> None:
    """Were a footer to end in its own CRC-32, the CRC-32 of all footers would be one constant."""
    first, second = (
        encode_footer(
            dataclasses.replace(
                EMPTY, items=(FooterItem(Extent(0, 9), Extent(0, 9), 0, 0, (crc32,)),)
            )
        )
        for crc32 in crc32s
    )
    assert footer_crc32(first) == zlib.crc32(first)
    assert footer_crc32(first) != footer_crc32(second)
