"""What does not fit together in an archive is found; every archive of torch.save fits.

Method: archives of torch.save against Python's zipfile; then one number or byte of them changed,
and archives that zipfile makes with two entries of one name, sharing bytes, or compressed.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.envelope import EnvelopeCache, TensorForm
from dcp_gds.format.extent import Extent
from dcp_gds.format.ziplayout import EntryData, read_entries


def saved(value: object) -> bytes:
    archive = io.BytesIO()
    torch.save(value, archive)
    return archive.getvalue()


SAMPLE = saved({"a": torch.arange(300.0), "b": torch.ones(5, dtype=torch.int8), "c": "text"})


def entries_of(data: bytes) -> list[EntryData]:
    def read(extent: Extent) -> bytes:
        assert extent.offset >= 0
        assert extent.end <= len(data)
        return data[extent.offset : extent.end]

    return read_entries(read, archive_length=len(data))


def entry(name: str, data: bytes = SAMPLE) -> zipfile.ZipInfo:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.getinfo(f"archive/{name}")


def central(name: str) -> int:
    """Where the central directory has an entry."""
    return SAMPLE.rindex(b"PK\x01\x02", 0, SAMPLE.rindex(f"archive/{name}".encode()))


def changed(offset: int, new: bytes) -> bytes:
    assert SAMPLE[offset : offset + len(new)] != new
    return SAMPLE[:offset] + new + SAMPLE[offset + len(new) :]


@pytest.mark.parametrize(
    "value",
    [torch.arange(7), torch.empty(0), {"x": torch.ones(3)}, [1, "two"], torch.zeros(100_000)],
    ids=["tensor", "empty", "dict", "plain", "long"],
)
def test_the_entries_are_those_that_zipfile_finds(value: object) -> None:
    data = saved(value)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        expected = {info.filename: (archive.read(info), info.CRC) for info in archive.infolist()}
    found = entries_of(data)
    assert {
        found.name: (data[found.extent.offset : found.extent.end], found.crc32) for found in found
    } == expected
    assert all(zlib.crc32(content) == crc32 for content, crc32 in expected.values())


def test_an_archive_of_more_than_four_gibibytes() -> None:
    """Its numbers are in zip64 fields. The zeros in between are never read."""
    form = TensorForm.contiguous(torch.uint8, ((4 << 30) + 64,))
    envelope = EnvelopeCache(checksum=True).get(form)
    tail = envelope.tail_with(7)
    tail_offset = len(envelope.head) + form.length

    def read(extent: Extent) -> bytes:
        part, start = (tail, tail_offset) if extent.offset >= tail_offset else (envelope.head, 0)
        found = part[extent.offset - start : extent.end - start]
        assert len(found) == extent.length
        return found

    entries = read_entries(read, archive_length=tail_offset + len(tail))
    [payload] = [found for found in entries if found.name.endswith("/data/0")]
    assert payload == EntryData(payload.name, Extent(len(envelope.head), form.length), 7)


def test_an_entry_twice() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("archive/data/0", b"one")
        archive.writestr("archive/data/0", b"two")
    with pytest.raises(CorruptCheckpointError, match="twice"):
        entries_of(file.getvalue())


def test_entries_that_share_bytes() -> None:
    start = entry("data/0").header_offset
    data = changed(central("data/1") + 42, struct.pack("<I", start))
    with pytest.raises(CorruptCheckpointError, match=r"data/1.*before the end"):
        entries_of(data)


def test_a_compressed_entry() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(5000))
    with pytest.raises(CorruptCheckpointError, match="method 8"):
        entries_of(file.getvalue())


PAYLOAD = entry("data/0")
# torch writes the zip64 end record always; the numbers that count are in it.
END64 = SAMPLE.rindex(b"PK\x06\x06")
DATA_END = SAMPLE.index(b"PK\x07\x08", PAYLOAD.header_offset + PAYLOAD.file_size)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(central("data/0") + 16, b"abcd"), "in the directory"),
        (changed(DATA_END + 4, b"abcd"), "beside its data"),
        (changed(DATA_END, b"abcd"), "lacks the descriptor"),
        (changed(PAYLOAD.header_offset, b"abcd"), "local header is malformed"),
        (changed(PAYLOAD.header_offset + 8, b"\x08\0"), "method 8"),
        (changed(PAYLOAD.header_offset + 26, b"\x01\0"), "another local header"),
        (changed(PAYLOAD.header_offset + 30, b"b"), "another local header"),
        (changed(PAYLOAD.header_offset + 28, b"\xff\xff"), "ends at"),
        (changed(central("data/0") + 42, struct.pack("<I", 1 << 30)), "reaches into"),
        (changed(central("data/0") + 20, struct.pack("<2I", 1 << 30, 1 << 30)), "ends at"),
        (changed(central("data/0") + 24, b"abcd"), "torch stores them"),
        (changed(len(SAMPLE) - 22, b"abcd"), "end record is missing"),
        (changed(END64 + 48, struct.pack("<Q", 1 << 62)), "said to begin"),
        (changed(END64 + 32, struct.pack("<Q", 1 << 62)), "more than fit"),
        (SAMPLE[:-1], "end record is missing"),
        (SAMPLE[-40:], "begin"),
        (b"", "too short"),
    ],
)
def test_what_does_not_fit_is_named(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=message):
        entries_of(data)


def refused_or_inside(read: Callable[[], list[EntryData]], *, length: int) -> None:
    """Entries are apart and inside the archive, or the archive is refused."""
    try:
        entries = read()
    except CorruptCheckpointError:
        return
    position = 0
    for found in entries:
        assert found.extent.offset >= position
        position = found.extent.end
    assert position <= length
    assert len({found.name for found in entries}) == len(entries)


# The zip64 end record is said to lie at 2^63 or more, where no Python index reaches.
@example([(SAMPLE.index(b"PK\6\7") + 15, 128)])
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1))
def test_any_change_is_refused_or_gives_entries_apart(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SAMPLE)
    for offset, value in changes:
        data[offset] = value
    refused_or_inside(lambda: entries_of(bytes(data)), length=len(data))


@given(st.binary(max_size=400), st.booleans())
def test_garbage_is_refused_or_gives_entries_apart(data: bytes, end: bool) -> None:
    data += SAMPLE[-22:] if end else b""
    refused_or_inside(lambda: entries_of(data), length=len(data))
