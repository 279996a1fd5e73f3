"""Trailer: what `.metadata` tells, behind its pickle, about the save and its shard files.

Stock `pickle.load` stops at the pickle's end and never sees it. Little-endian, without gaps:

| bytes | field |
|---|---|
| 16 | token |
| 8 | length of the pickle |
| 4 | CRC-32 of the pickle |
| 4 | number of shard files, n |
| 16 n | for each shard file: its length (8), CRC-32 of its footer (4), length of its name (4) |
| | the names in UTF-8, one after the other |
| 32 | end record |
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.endrecord import RecordKind, find_sealed, seal, unseal
from dcp_gds.format.relativepath import safe_relative_path

__all__ = ["ShardFileRecord", "Trailer", "encode_trailer", "split_metadata"]

_KIND = RecordKind("trailer", b"DCPGDStr", 1)
_HEADER = struct.Struct("<16sQ2I")
_RECORD = struct.Struct("<Q2I")


@dataclass(frozen=True, slots=True)
class ShardFileRecord:
    """A shard file: its name below the checkpoint's directory, its length, its footer's CRC-32."""

    name: str
    length: int
    footer_crc32: int


@dataclass(frozen=True, slots=True)
class Trailer:
    """What a save commits.

    Parameters
    ----------
    token
        The save's: 32 lower-case hexadecimal digits.
    pickle_length, pickle_crc32
        Of the bytes before the trailer.
    shard_files
        All files that the pickle refers to.
    """

    token: str
    pickle_length: int
    pickle_crc32: int
    shard_files: tuple[ShardFileRecord, ...]


def encode_trailer(trailer: Trailer) -> bytes:
    """Return the trailer's bytes."""
    names = [record.name.encode() for record in trailer.shard_files]
    records = [
        _RECORD.pack(record.length, record.footer_crc32, len(name))
        for record, name in zip(trailer.shard_files, names, strict=True)
    ]
    header = _HEADER.pack(
        bytes.fromhex(trailer.token),
        trailer.pickle_length,
        trailer.pickle_crc32,
        len(trailer.shard_files),
    )
    return seal(b"".join([header, *records, *names]), kind=_KIND)


def split_metadata(
    data: bytes, *, path: str | os.PathLike[str]
) -> tuple[memoryview, Trailer | None]:
    """Split a metadata file into its pickle and its trailer, None if it has none, as a stock file.

    A file that was cut off exactly behind its pickle is a stock file to the byte. Who knows the
    names of its shard files, or looks into them, can tell.

    Raises
    ------
    CorruptCheckpointError
        If the trailer is damaged or contradicts itself, or the pickle has another CRC-32.
    UnsupportedError
        If the trailer is whole, and of another version.
    """
    extent = find_sealed(data, kind=_KIND, file_length=len(data), path=path)
    view = memoryview(data)
    if extent is None:
        return view, None
    pickled = view[: extent.offset]
    body = unseal(view[extent.offset :], kind=_KIND, path=path, offset=extent.offset)
    try:
        trailer = _parse(body, path=path)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"the trailer is malformed: {error}", path, offset=extent.offset
        ) from error
    if trailer.pickle_length != len(pickled):
        raise CorruptCheckpointError(
            f"the pickle has {len(pickled)} bytes, expected {trailer.pickle_length}", path, offset=0
        )
    computed = zlib.crc32(pickled)
    if computed != trailer.pickle_crc32:
        raise CorruptCheckpointError(
            f"the pickle has CRC-32 {computed:08x}, expected {trailer.pickle_crc32:08x}",
            path,
            offset=0,
        )
    return pickled, trailer


def _parse(body: memoryview, *, path: str | os.PathLike[str]) -> Trailer:
    """Parse a trailer whose CRC-32 is right; ValueError and its like if it contradicts itself."""
    token, pickle_length, pickle_crc32, count = _HEADER.unpack_from(body)
    names_start = _HEADER.size + count * _RECORD.size
    if names_start > len(body):
        raise ValueError(f"it counts {count} shard files, more than fit")
    records = []
    position = names_start
    for length, footer_crc32, name_length in _RECORD.iter_unpack(body[_HEADER.size : names_start]):
        name = str(body[position : position + name_length], "utf-8")
        records.append(ShardFileRecord(safe_relative_path(name, path=path), length, footer_crc32))
        position += name_length
    if position != len(body):
        raise ValueError(f"the names end at {position}, expected {len(body)}")
    if len({record.name for record in records}) != len(records):
        raise ValueError("it names a shard file twice")
    return Trailer(token.hex(), pickle_length, pickle_crc32, tuple(records))
