"""A trailer comes back as it was or not at all: round trips, damaged bytes, contradictions."""

from __future__ import annotations

import dataclasses
import pickle
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.endrecord import END_RECORD_LENGTH, RecordKind, seal
from dcp_gds.format.trailer import ShardFileRecord, Trailer, encode_trailer, split_metadata

PATH = "/ckpt/.metadata"
KIND = RecordKind("trailer", b"DCPGDStr", 1)
TOKEN = "fedcba9876543210" * 2
PICKLED = pickle.dumps({"a": [1, 2, 3]})
RECORDS = (ShardFileRecord("__0_0-t.distcp", 2**40, 1), ShardFileRecord("größe/x", 0, 2**32 - 1))
NAMES = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=20)


def trailer_of(pickled: bytes, records: tuple[ShardFileRecord, ...] = RECORDS) -> Trailer:
    return Trailer(TOKEN, len(pickled), zlib.crc32(pickled), records)


SAMPLE = PICKLED + encode_trailer(trailer_of(PICKLED))


@given(
    st.binary(max_size=100),
    st.lists(
        st.builds(ShardFileRecord, NAMES, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
        unique_by=lambda record: record.name,
        max_size=8,
    ),
)
def test_a_trailer_comes_back(pickled: bytes, records: list[ShardFileRecord]) -> None:
    trailer = trailer_of(pickled, tuple(records))
    got, back = split_metadata(pickled + encode_trailer(trailer), path=PATH)
    assert bytes(got) == pickled
    assert back == trailer


def test_the_bytes_are_those_of_the_format() -> None:
    record = ShardFileRecord("ab", 5, 6)
    body = struct.pack("<16sQ2I", bytes.fromhex(TOKEN), len(PICKLED), zlib.crc32(PICKLED), 1)
    body += struct.pack("<Q2I", 5, 6, 2) + b"ab"
    length = len(body) + 32
    first, last = b"DCPGDStr" + struct.pack("<I", 1), struct.pack("<Q", length) + b"DCPGDStr"
    crc32 = struct.pack("<I", zlib.crc32(body + first + last))
    assert encode_trailer(trailer_of(PICKLED, (record,))) == body + first + crc32 + last


@pytest.mark.parametrize("data", [b"", PICKLED, PICKLED + bytes(32)])
def test_a_stock_file_has_none(data: bytes) -> None:
    pickled, trailer = split_metadata(data, path=PATH)
    assert trailer is None
    assert pickled == data


def test_stock_pickle_does_not_see_it() -> None:
    assert pickle.loads(SAMPLE) == {"a": [1, 2, 3]}


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_damaged_byte_is_found_in_the_pickle_as_well(mask: int) -> None:
    data = bytearray(SAMPLE)
    for position in range(len(data)):
        data[position] ^= mask
        with pytest.raises(CorruptCheckpointError) as caught:
            split_metadata(bytes(data), path=PATH)
        assert caught.value.path == PATH
        data[position] ^= mask
    assert split_metadata(bytes(data), path=PATH)[1] == trailer_of(PICKLED)


def test_a_file_that_was_cut_off_has_none() -> None:
    # 24 bytes: the end record's first magic has come to lie where the last one was.
    damaged = len(SAMPLE) - 24
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        split_metadata(SAMPLE[:damaged], path=PATH)
    for length in set(range(len(SAMPLE))) - {damaged}:
        data, trailer = split_metadata(SAMPLE[:length], path=PATH)
        assert trailer is None
        assert data == SAMPLE[:length]


def test_a_file_whose_beginning_is_lost_is_found() -> None:
    for length in range(END_RECORD_LENGTH, len(SAMPLE)):
        with pytest.raises(CorruptCheckpointError):
            split_metadata(SAMPLE[-length:], path=PATH)


def test_another_pickle_is_found() -> None:
    trailer = encode_trailer(trailer_of(PICKLED))
    with pytest.raises(CorruptCheckpointError, match="pickle has CRC-32"):
        split_metadata(PICKLED.replace(b"a", b"b") + trailer, path=PATH)
    with pytest.raises(CorruptCheckpointError, match=r"pickle has \d+ bytes"):
        split_metadata(PICKLED + b"." + trailer, path=PATH)


def sealed(*, count: int, records: bytes) -> bytes:
    """Return a metadata file whose trailer has a right CRC-32 and these records."""
    header = struct.pack("<16sQ2I", bytes(16), len(PICKLED), zlib.crc32(PICKLED), count)
    return PICKLED + seal(header + records, kind=KIND)


def record_of(name: bytes) -> bytes:
    return struct.pack("<Q2I", 1, 1, len(name)) + name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sealed(count=1, records=b""), "1 shard files, more than fit"),
        (sealed(count=2**32 - 1, records=record_of(b"a")), "more than fit"),
        (sealed(count=0, records=b"a"), "the names end at"),
        (sealed(count=1, records=record_of(b"ab")[:-1]), "the names end at"),
        (sealed(count=1, records=record_of(b"ab") + b"c"), "the names end at"),
        (sealed(count=1, records=record_of(b"\xff")), "utf-8"),
        (sealed(count=1, records=record_of(b"../x")), "below the checkpoint's directory"),
        (sealed(count=1, records=record_of(b"")), "below the checkpoint's directory"),
        (PICKLED + encode_trailer(trailer_of(PICKLED, RECORDS[:1] * 2)), "twice"),
        (PICKLED + seal(b"short", kind=KIND), "malformed"),
    ],
)
def test_a_contradiction_is_found_whatever_its_checksum(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        split_metadata(data, path=PATH)


def test_another_version_is_not_called_damage() -> None:
    body = encode_trailer(trailer_of(PICKLED))[:-END_RECORD_LENGTH]
    later = seal(body, kind=dataclasses.replace(KIND, version=2))
    with pytest.raises(UnsupportedError, match="version 2, this dcp_gds reads 1"):
        split_metadata(PICKLED + later, path=PATH)


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_stock(body: bytes) -> None:
    assert split_metadata(body, path=PATH)[1] is None
    with pytest.raises(CorruptCheckpointError):
        split_metadata(seal(body, kind=KIND), path=PATH)
