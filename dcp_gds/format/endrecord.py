"""End record: the last bytes of a footer or trailer, by which it is found and damage to it shows.

| bytes | field |
|---|---|
| 8 | magic |
| 4 | version, unsigned |
| 4 | CRC-32 of all bytes of the footer or trailer but these four |
| 8 | length of the footer or trailer with this record |
| 8 | magic, once more |

The magic stands there twice, so that no single damaged byte makes a file of ours look like a stock
one. The CRC-32 does not come last on purpose: the CRC-32 of any bytes that end in their own CRC-32
is one constant, and the CRC-32 of a whole footer, which `.metadata` keeps, would tell nothing.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.extent import Extent

__all__ = ["END_RECORD_LENGTH", "RecordKind", "find_sealed", "seal", "unseal"]

_END = struct.Struct("<8sIIQ8s")
END_RECORD_LENGTH = _END.size
_CRC32_POSITION = 12
_CRC32_END = 16


@dataclass(frozen=True, slots=True)
class RecordKind:
    """What is sealed: its name in messages, its magic of 8 bytes, and its version."""

    name: str
    magic: bytes
    version: int


def seal(body: bytes | bytearray, *, kind: RecordKind) -> bytes:
    """Return the body with its end record."""
    length = len(body) + END_RECORD_LENGTH
    end = bytearray(_END.pack(kind.magic, kind.version, 0, length, kind.magic))
    crc32 = zlib.crc32(end[_CRC32_END:], zlib.crc32(end[:_CRC32_POSITION], zlib.crc32(body)))
    struct.pack_into("<I", end, _CRC32_POSITION, crc32)
    return b"".join((body, end))


def find_sealed(
    last_bytes: bytes | memoryview,
    *,
    kind: RecordKind,
    file_length: int,
    path: str | os.PathLike[str],
) -> Extent | None:
    """Find the record that ends a file; None if the file ends in something else.

    Parameters
    ----------
    last_bytes
        The file's last `END_RECORD_LENGTH` bytes or more; all of a shorter file.

    Raises
    ------
    CorruptCheckpointError
        If the end record is damaged, or its length does not fit the file.
    """
    assert len(last_bytes) >= min(END_RECORD_LENGTH, file_length)
    if len(last_bytes) < END_RECORD_LENGTH:
        return None
    first, _, _, length, last = _END.unpack_from(last_bytes, len(last_bytes) - END_RECORD_LENGTH)
    if kind.magic not in (first, last):
        return None
    offset = file_length - END_RECORD_LENGTH
    if first != last:
        raise CorruptCheckpointError(
            f"the end record of the {kind.name} is damaged", path, offset=offset
        )
    if not END_RECORD_LENGTH <= length <= file_length:
        raise CorruptCheckpointError(
            f"the {kind.name} claims {length} bytes of a file of {file_length}", path, offset=offset
        )
    return Extent(file_length - length, length)


def unseal(
    data: bytes | memoryview, *, kind: RecordKind, path: str | os.PathLike[str], offset: int
) -> memoryview:
    """Check the end record of a footer or trailer at `offset` of its file, and return the body.

    Raises
    ------
    CorruptCheckpointError
        If magic, length or CRC-32 disagree with the data.
    UnsupportedError
        If all of them agree, and the version is another one.
    """
    view = memoryview(data)
    if len(view) < END_RECORD_LENGTH:
        raise CorruptCheckpointError(
            f"the {kind.name} has {len(view)} bytes, less than an end record", path, offset=offset
        )
    body, end = view[:-END_RECORD_LENGTH], view[-END_RECORD_LENGTH:]
    first, version, crc32, length, last = _END.unpack(end)
    if (first, length, last) != (kind.magic, len(view), kind.magic):
        raise CorruptCheckpointError(
            f"the end record of the {kind.name} is damaged", path, offset=offset + len(body)
        )
    computed = zlib.crc32(end[_CRC32_END:], zlib.crc32(end[:_CRC32_POSITION], zlib.crc32(body)))
    if computed != crc32:
        raise CorruptCheckpointError(
            f"the {kind.name} has CRC-32 {computed:08x}, expected {crc32:08x}", path, offset=offset
        )
    if version != kind.version:
        raise UnsupportedError(
            f"{os.fspath(path)}: the {kind.name} has version {version}, this dcp_gds reads"
            f" {kind.version}: load it with the dcp_gds that wrote it, or a later one"
        )
    return body
