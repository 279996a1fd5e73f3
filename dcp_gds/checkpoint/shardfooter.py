"""Shard footer: the footer of a shard file, read and compared with what was committed."""

from __future__ import annotations

from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import (
    FOOTER_TAIL_LENGTH,
    Footer,
    decode_footer,
    footer_crc32,
    parse_footer_tail,
)
from dcp_gds.format.metadata import ShardFileRecord

__all__ = ["read_footer"]


def read_footer(side: SideReader, *, record: ShardFileRecord | None) -> Footer | None:
    """Read a footer and compare it with what the committed metadata say of the file.

    Parameters
    ----------
    record
        None where the metadata have no trailer. A footer is used all the same if there is one.

    Raises
    ------
    CorruptCheckpointError
        If they disagree, or the footer is damaged.
    UnsupportedError
        If it is whole, and of another version.
    """
    if record is not None and side.length != record.length:
        raise CorruptCheckpointError(
            f"the file has {side.length} bytes, {record.length} were committed", side.path
        )
    tail_length = min(FOOTER_TAIL_LENGTH, side.length)
    tail = side.read(Extent(side.length - tail_length, tail_length))
    extent = parse_footer_tail(tail, file_length=side.length, path=side.path)
    if extent is None and record is None:
        return None
    if extent is None:
        raise CorruptCheckpointError("the committed footer is not there", side.path)
    data = side.read(extent)
    computed = footer_crc32(data)
    if record is not None and computed != record.footer_crc32:
        raise CorruptCheckpointError(
            f"the footer has CRC-32 {computed:08x}, {record.footer_crc32:08x} was committed",
            side.path,
            offset=extent.offset,
        )
    return decode_footer(data, file_length=side.length, path=side.path)
