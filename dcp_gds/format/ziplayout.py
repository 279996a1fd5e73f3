"""Zip layout: where the data of a torch.save archive's entries lie, and whether it all fits.

torch looks at the central directory and at two numbers of each local header, and compares no
CRC-32. So what else is wrong with an archive goes unseen by a load.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent
from dcp_gds.format.zipdirectory import (
    END_RECORDS_LENGTH,
    ZipEntry,
    directory_offset,
    local_header_length,
    read_directory,
)

__all__ = ["EntryData", "read_entries"]

# A payload of 10^6 tensors has a directory of this size; more is not read into memory.
DIRECTORY_LENGTH_MAX = 64 << 20
_HEADER = struct.Struct("<4s5H3I2H")
_DESCRIPTOR = struct.Struct("<4sI")
_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
# The header's numbers are in the descriptor behind the data.
_FLAG_DESCRIPTOR = 8


@dataclass(frozen=True, slots=True)
class EntryData:
    """An entry's data.

    Parameters
    ----------
    name
        Of the entry.
    extent
        Of the data, relative to the archive's start.
    crc32
        Of the data; zero is what torch writes when it computes none.
    """

    name: str
    extent: Extent
    crc32: int


def read_entries(read: Callable[[Extent], bytes], *, archive_length: int) -> list[EntryData]:
    """Return the entries of an archive, in the order of their data.

    Parameters
    ----------
    read
        Returns the bytes of an extent of the archive. Headers, descriptors and the directory are
        read, not the data.
    archive_length
        Bytes.

    Raises
    ------
    CorruptCheckpointError
        If the directory or a header is malformed, two entries have one name or share bytes, or a
        number that stands in several places differs between them.
    """
    tail_length = min(END_RECORDS_LENGTH, archive_length)
    start = archive_length - tail_length
    start = directory_offset(read(Extent(start, tail_length)), tail_offset=start)
    length = archive_length - start
    if length > DIRECTORY_LENGTH_MAX:
        raise CorruptCheckpointError(f"zip directory has {length} bytes")
    entries = read_directory(read(Extent(start, length)), tail_offset=start)
    found: list[EntryData] = []
    names: set[str] = set()
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.name in names:
            raise CorruptCheckpointError(f"zip entry {entry.name!r} is there twice")
        names.add(entry.name)
        if entry.header_offset < position:
            raise CorruptCheckpointError(
                f"zip entry {entry.name!r} begins at {entry.header_offset}, before the end of the"
                f" last one, {position}"
            )
        data, position = _read_entry(read, entry, directory_start=start)
        found.append(data)
    return found


def _read_entry(
    read: Callable[[Extent], bytes], entry: ZipEntry, *, directory_start: int
) -> tuple[EntryData, int]:
    """Compare an entry's header and descriptor with the directory; its data, and where it ends."""
    named = f"zip entry {entry.name!r}"
    name = entry.name.encode()
    prefix_length = _HEADER.size + len(name)
    if entry.header_offset + prefix_length > directory_start:
        raise CorruptCheckpointError(f"{named} reaches into the directory")
    prefix = read(Extent(entry.header_offset, prefix_length))
    offset = entry.header_offset + local_header_length(prefix)
    fields = _HEADER.unpack_from(prefix)
    if fields[3] or fields[9] != len(name) or prefix[_HEADER.size :] != name:
        raise CorruptCheckpointError(
            f"{named} has another local header: {prefix[_HEADER.size :]!r}, method {fields[3]}"
        )
    end = offset + entry.length
    has_descriptor = bool(fields[2] & _FLAG_DESCRIPTOR)
    if end + (_DESCRIPTOR.size if has_descriptor else 0) > directory_start:
        raise CorruptCheckpointError(f"{named} ends at {end}, in the directory or behind it")
    crc32 = fields[6]
    if has_descriptor:
        signature, crc32 = _DESCRIPTOR.unpack(read(Extent(end, _DESCRIPTOR.size)))
        if signature != _DESCRIPTOR_SIGNATURE:
            raise CorruptCheckpointError(f"{named} lacks the descriptor behind its data")
    if crc32 != entry.crc32:
        raise CorruptCheckpointError(
            f"{named} has CRC-32 {crc32:08x} beside its data, {entry.crc32:08x} in the directory"
        )
    end += _DESCRIPTOR.size if has_descriptor else 0
    return EntryData(entry.name, Extent(offset, entry.length), entry.crc32), end
