"""Zip directory: where the entries of a torch.save archive lie, read from its central directory.

Only what torch writes is understood: stored entries, no encryption, no comment, zip64 where a
number needs it. The directory is found through the end record, never by searching for a signature,
which a payload may contain.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from dcp_gds.errors import CorruptCheckpointError

__all__ = [
    "END_RECORDS_LENGTH",
    "ZipEntry",
    "directory_offset",
    "local_header_length",
    "read_directory",
]

_END = struct.Struct("<4s4H2IH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_ZIP64_EXTRA_ID = 1
_CRC32_IN_CENTRAL = 16
_MAX32 = 0xFFFFFFFF

# The last bytes of an archive, which say where its directory begins: torch writes them without gap.
END_RECORDS_LENGTH = _END64.size + _END64_LOCATOR.size + _END.size


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One entry: its name, where its local header lies in the archive, its size, and its CRC-32.

    `crc32_position` is where the central directory keeps the CRC-32, in bytes from the archive's
    start.
    """

    name: str
    header_offset: int
    length: int
    crc32: int
    crc32_position: int


def read_directory(tail: bytes, *, tail_offset: int) -> list[ZipEntry]:
    """Parse the central directory of an archive whose last bytes, from `tail_offset` on, are given.

    Raises
    ------
    CorruptCheckpointError
        If the end record or the directory is malformed, or reaches in front of `tail_offset`.
    """
    try:
        return _parse(memoryview(tail), tail_offset=tail_offset)
    except (struct.error, UnicodeDecodeError, IndexError, OverflowError) as error:
        raise CorruptCheckpointError(f"zip directory is malformed: {error}") from error


def directory_offset(tail: bytes, *, tail_offset: int) -> int:
    """Where the central directory begins, from an archive's last `END_RECORDS_LENGTH` bytes.

    Parameters
    ----------
    tail
        Those bytes, or all of a shorter archive; from `tail_offset` of it on.

    Raises
    ------
    CorruptCheckpointError
        If the end record is malformed, or the directory would begin outside the archive.
    """
    try:
        position, _ = _locate_directory(memoryview(tail), tail_offset=tail_offset)
    except (struct.error, OverflowError) as error:
        raise CorruptCheckpointError(f"zip directory is malformed: {error}") from error
    offset = tail_offset + position
    if not 0 <= offset <= tail_offset + len(tail):
        raise CorruptCheckpointError(f"zip directory is said to begin at {offset}")
    return offset


def local_header_length(header: bytes | memoryview) -> int:
    """Length in bytes of the local header that begins `header`: the entry's data follow it."""
    if len(header) < _LOCAL.size or bytes(header[:4]) != b"PK\x03\x04":
        raise CorruptCheckpointError("zip local header is malformed")
    fields = _LOCAL.unpack_from(header)
    return _LOCAL.size + int(fields[9]) + int(fields[10])


def _parse(tail: memoryview, *, tail_offset: int) -> list[ZipEntry]:
    """Walk the central directory."""
    position, count = _locate_directory(tail, tail_offset=tail_offset)
    if count * _CENTRAL.size > len(tail):
        raise CorruptCheckpointError(f"zip directory claims {count} entries, more than fit")
    entries = []
    for _ in range(count):
        if position < 0:
            raise CorruptCheckpointError("zip directory begins in front of the bytes at hand")
        fields = _CENTRAL.unpack_from(tail, position)
        if fields[0] != b"PK\x01\x02":
            raise CorruptCheckpointError(f"zip directory entry has signature {fields[0]!r}")
        name_length, extra_length, comment_length = fields[10:13]
        name_start = position + _CENTRAL.size
        extra_start = name_start + name_length
        end = extra_start + extra_length + comment_length
        if end > len(tail):
            raise CorruptCheckpointError("zip directory entry is cut off")
        if fields[4] or fields[8] != fields[9]:
            raise CorruptCheckpointError(
                f"zip directory entry has method {fields[4]} and {fields[8]} of {fields[9]} bytes;"
                " torch stores them as they are"
            )
        length, header_offset = _wide_numbers(
            bytes(tail[extra_start : extra_start + extra_length]),
            length=fields[9],
            packed_length=fields[8],
            header_offset=fields[16],
        )
        entries.append(
            ZipEntry(
                name=bytes(tail[name_start:extra_start]).decode("utf-8"),
                header_offset=header_offset,
                length=length,
                crc32=fields[7],
                crc32_position=tail_offset + position + _CRC32_IN_CENTRAL,
            )
        )
        position = end
    return entries


def _locate_directory(tail: memoryview, *, tail_offset: int) -> tuple[int, int]:
    """Return the directory's position in `tail` and its number of entries."""
    end_position = len(tail) - _END.size
    if end_position < 0:
        raise CorruptCheckpointError("archive is too short for a zip end record")
    signature, _, _, _, count, _, offset, comment = _END.unpack_from(tail, end_position)
    if signature != b"PK\x05\x06" or comment:
        raise CorruptCheckpointError("zip end record is missing")
    locator_position = end_position - _END64_LOCATOR.size
    if locator_position >= 0 and bytes(tail[locator_position:][:4]) == b"PK\x06\x07":
        _, _, end64_offset, _ = _END64_LOCATOR.unpack_from(tail, locator_position)
        end64_position = end64_offset - tail_offset
        if end64_position < 0:
            raise CorruptCheckpointError("zip64 end record lies in front of the bytes at hand")
        fields = _END64.unpack_from(tail, end64_position)
        if fields[0] != b"PK\x06\x06":
            raise CorruptCheckpointError("zip64 end record is malformed")
        count, offset = fields[7], fields[9]
    return offset - tail_offset, count


def _wide_numbers(
    extra: bytes, *, length: int, packed_length: int, header_offset: int
) -> tuple[int, int]:
    """Replace the numbers that did not fit 32 bits by those of the zip64 extra field."""
    if _MAX32 not in (length, packed_length, header_offset):
        return length, header_offset
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        position += 4
        if kind == _ZIP64_EXTRA_ID:
            values = iter(struct.unpack_from(f"<{size // 8}Q", extra, position))
            length = next(values, -1) if length == _MAX32 else length
            if packed_length == _MAX32:
                next(values, None)
            header_offset = next(values, -1) if header_offset == _MAX32 else header_offset
            break
        position += size
    if length < 0 or header_offset < 0:
        raise CorruptCheckpointError("zip64 extra field is cut off")
    return length, header_offset
