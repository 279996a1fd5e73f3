"""Archive entries: what an item's torch.save archive consists of, as extents of the shard file."""

from __future__ import annotations

from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.description import DESCRIPTION_LENGTH_MAX, check_description_pickle
from dcp_gds.format.extent import Extent
from dcp_gds.format.ziplayout import EntryData, read_entries
from dcp_gds.io.checksum import crc32_of_bytes

__all__ = ["archive_entries", "check_description"]

_STORAGE_DIRECTORY = "data"
_PICKLE_SUFFIX = ".pkl"
_SIGNATURE = b"PK\x03\x04"


def archive_entries(side: SideReader, extent: Extent) -> list[EntryData]:
    """The entries of the archive at an extent of a file; their extents are in the file."""

    def read(part: Extent) -> bytes:
        return side.read(Extent(extent.offset + part.offset, part.length))

    return [
        EntryData(
            entry.name,
            Extent(extent.offset + entry.extent.offset, entry.extent.length),
            entry.crc32,
        )
        for entry in read_entries(read, archive_length=extent.length)
    ]


def check_description(side: SideReader, extent: Extent, *, compare: bool) -> None:
    """Look at everything in an archive but its storages, before torch does.

    torch compares no CRC-32, and would take a damaged pickle for what was saved; it unpacks
    compressed entries, and reads what is no archive as a pickle of the format before 1.6, however
    much memory these ask for.

    Parameters
    ----------
    compare
        Whether the entries are compared with their CRC-32s, where they have one.

    Raises
    ------
    CorruptCheckpointError
        If one differs, the archive is malformed, or its description is nothing that torch.save
        writes for a tensor.
    """
    if side.read(Extent(extent.offset, min(4, extent.length))) != _SIGNATURE:
        raise CorruptCheckpointError("it does not begin as an archive of torch.save")
    for entry in archive_entries(side, extent):
        # archive/data/0 is a storage, archive/data.pkl and archive/.data/... are not.
        if entry.name.split("/")[-2:-1] == [_STORAGE_DIRECTORY]:
            continue
        if entry.extent.length > DESCRIPTION_LENGTH_MAX:
            raise CorruptCheckpointError(
                f"zip entry {entry.name!r} has {entry.extent.length} bytes; that of a tensor has a"
                f" few hundred, and {DESCRIPTION_LENGTH_MAX} are read"
            )
        data = side.read(entry.extent)
        computed = crc32_of_bytes(data)
        if compare and entry.crc32 and computed != entry.crc32:
            raise CorruptCheckpointError(
                f"zip entry {entry.name!r} has CRC-32 {computed:08x}, the directory says"
                f" {entry.crc32:08x}"
            )
        if entry.name.endswith(_PICKLE_SUFFIX):
            check_description_pickle(data)
