"""Archive entries: what an item's torch.save archive consists of, as extents of the shard file."""

from __future__ import annotations

from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent
from dcp_gds.format.ziplayout import EntryData, read_entries
from dcp_gds.io.checksum import crc32_of_bytes

__all__ = ["archive_entries", "check_description"]

_STORAGE_DIRECTORY = "data"


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


def check_description(side: SideReader, extent: Extent) -> None:
    """Compare everything in an archive but its storages with its CRC-32, where it has one.

    torch compares none of them, and would take a damaged pickle for what was saved.

    Raises
    ------
    CorruptCheckpointError
        If one differs, or the archive is malformed.
    """
    for entry in archive_entries(side, extent):
        # archive/data/0 is a storage, archive/data.pkl and archive/.data/... are not.
        if entry.name.split("/")[-2:-1] != [_STORAGE_DIRECTORY] and entry.crc32:
            computed = crc32_of_bytes(side.read(entry.extent))
            if computed != entry.crc32:
                raise CorruptCheckpointError(
                    f"zip entry {entry.name!r} has CRC-32 {computed:08x}, the directory says"
                    f" {entry.crc32:08x}"
                )
