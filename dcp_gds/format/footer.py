"""Footer: what the end of a shard file tells about its items.

Little-endian, without gaps:

| bytes | field |
|---|---|
| 16 | token |
| 4 | flags: bit 0 says that checksums were computed |
| 4 | zero |
| 8 | alignment |
| 8 | checksum block length |
| 8 | number of items, n |
| 8 | number of checksum blocks of all items, b |
| 48 n | for each item: offset and length of the item, offset and length of its payload (8 each), \
CRC-32 of head and tail (4 each), number of its checksum blocks (8) |
| 4 b | CRC-32 of every checksum block, item after item |
| 32 | end record |
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.checksumblock import block_count, block_extents
from dcp_gds.format.endrecord import END_RECORD_LENGTH, RecordKind, find_sealed, seal, unseal
from dcp_gds.format.extent import Extent
from dcp_gds.format.placement import Placement

__all__ = [
    "FOOTER_TAIL_LENGTH",
    "Footer",
    "FooterBuilder",
    "FooterItem",
    "block_count",
    "block_extents",
    "decode_footer",
    "footer_crc32",
    "footer_length",
    "parse_footer_tail",
]

FOOTER_TAIL_LENGTH = END_RECORD_LENGTH
_KIND = RecordKind("footer", b"DCPGDSft", 1)
_HEADER = struct.Struct("<16s2I4Q")
_ITEM = struct.Struct("<4Q2IQ")
_CRC32_LENGTH = 4
_FLAG_CHECKSUMS = 1


@dataclass(frozen=True, slots=True)
class FooterItem:
    """An item: its extent in the file, its payload's, and its checksums.

    Parameters
    ----------
    extent
        The whole item.
    payload
        The tensor's bytes, as an extent of the file; of a byte item, the whole item.
    head_crc32, tail_crc32
        CRC-32 of the bytes of the item before and behind the payload; zero where there are none.
    block_crc32s
        CRC-32 of every extent of `block_extents`; without meaning when no checksums were computed.
    """

    extent: Extent
    payload: Extent
    head_crc32: int
    tail_crc32: int
    block_crc32s: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """A shard file's footer.

    Parameters
    ----------
    token
        The save's: 32 lower-case hexadecimal digits.
    alignment
        Of the placement, in bytes; a power of two.
    block_length
        Of a checksum block, in bytes; a multiple of `alignment`.
    checksums
        Whether checksums were computed.
    items
        In file order.
    """

    token: str
    alignment: int
    block_length: int
    checksums: bool
    items: tuple[FooterItem, ...]


class FooterBuilder:
    """Puts a footer together, items in any order as their checksums become known.

    Parameters
    ----------
    token, alignment, block_length, checksums
        As in `Footer`.
    item_count, block_count
        Items, and checksum blocks of all of them.
    """

    def __init__(
        self,
        *,
        token: str,
        alignment: int,
        block_length: int,
        checksums: bool,
        item_count: int,
        block_count: int,
    ) -> None:
        length = footer_length(item_count=item_count, block_count=block_count)
        self._body = bytearray(length - FOOTER_TAIL_LENGTH)
        flags = _FLAG_CHECKSUMS if checksums else 0
        _HEADER.pack_into(
            self._body,
            0,
            bytes.fromhex(token),
            flags,
            0,
            alignment,
            block_length,
            item_count,
            block_count,
        )
        self._blocks_start = _HEADER.size + item_count * _ITEM.size
        self._missing = item_count

    def put(
        self,
        placement: Placement,
        *,
        index: int,
        head_crc32: int,
        tail_crc32: int,
        first_block: int,
        block_crc32s: Sequence[int],
    ) -> None:
        """Note an item, once.

        Parameters
        ----------
        index, first_block
            Numbers of the item and of its first checksum block in the file.
        head_crc32, tail_crc32, block_crc32s
            As in `FooterItem`.
        """
        count = len(block_crc32s)
        _ITEM.pack_into(
            self._body,
            _HEADER.size + index * _ITEM.size,
            placement.offset,
            placement.length,
            placement.payload_offset,
            placement.payload_length,
            head_crc32,
            tail_crc32,
            count,
        )
        start = self._blocks_start + first_block * _CRC32_LENGTH
        struct.pack_into(f"<{count}I", self._body, start, *block_crc32s)
        self._missing -= 1

    def encode(self) -> bytes:
        """Return the bytes of the footer, which is complete."""
        assert not self._missing
        return seal(self._body, kind=_KIND)


def footer_length(*, item_count: int, block_count: int) -> int:
    """Return the length of a footer, which depends on nothing else."""
    blocks_length = block_count * _CRC32_LENGTH
    return _HEADER.size + item_count * _ITEM.size + blocks_length + FOOTER_TAIL_LENGTH


def footer_crc32(data: bytes | memoryview) -> int:
    """Return the CRC-32 of a whole encoded footer, which `.metadata` keeps."""
    return zlib.crc32(data)


def parse_footer_tail(
    last_bytes: bytes | memoryview, *, file_length: int, path: str | os.PathLike[str]
) -> Extent | None:
    """Find the footer from the last `FOOTER_TAIL_LENGTH` bytes of a file, or all of a shorter one.

    Returns
    -------
    Extent or None
        Where the footer lies; None in a file that does not end in one, as a stock file.

    Raises
    ------
    CorruptCheckpointError
        If the end record is damaged, or its length does not fit the file.
    """
    return find_sealed(last_bytes, kind=_KIND, file_length=file_length, path=path)


def decode_footer(
    data: bytes | memoryview, *, file_length: int, path: str | os.PathLike[str]
) -> Footer:
    """Parse a footer, which is the end of a file of `file_length` bytes.

    Raises
    ------
    CorruptCheckpointError
        If it is damaged, or contradicts itself or the file's length.
    UnsupportedError
        If it is whole, and of another version.
    """
    offset = file_length - len(data)
    if offset < 0:
        raise CorruptCheckpointError(
            f"the footer has {len(data)} bytes, the file only {file_length}", path
        )
    body = unseal(data, kind=_KIND, path=path, offset=offset)
    try:
        return _parse(body, items_end=offset)
    except ValueError as error:
        raise CorruptCheckpointError(str(error), path, offset=offset) from error


def _parse(body: memoryview, *, items_end: int) -> Footer:
    """Parse a footer whose CRC-32 is right; its items have to end at or before `items_end`."""
    if len(body) < _HEADER.size:
        raise ValueError(f"the footer has {len(body)} bytes before its end record")
    token, flags, zero, alignment, block_length, item_count, blocks = _HEADER.unpack_from(body)
    expected = footer_length(item_count=item_count, block_count=blocks) - FOOTER_TAIL_LENGTH
    if len(body) != expected:
        raise ValueError(
            f"the footer has {len(body)} bytes before its end record, expected {expected} with"
            f" {item_count} items and {blocks} blocks"
        )
    if flags & ~_FLAG_CHECKSUMS or zero:
        raise ValueError(f"the footer has unknown flags {flags:#x}, {zero:#x}")
    if alignment == 0 or alignment & (alignment - 1):
        raise ValueError(f"the footer's alignment is {alignment}, not a power of two")
    if block_length == 0 or block_length % alignment:
        raise ValueError(
            f"the footer's block length is {block_length}, not a multiple of {alignment}"
        )
    items = _parse_items(
        body, item_count=item_count, alignment=alignment, block_length=block_length
    )
    if items and items[-1].extent.end > items_end:
        raise ValueError(f"an item ends at {items[-1].extent.end}, in the footer or behind it")
    checksums = bool(flags & _FLAG_CHECKSUMS)
    return Footer(token.hex(), alignment, block_length, checksums, items)


def _parse_items(
    body: memoryview, *, item_count: int, alignment: int, block_length: int
) -> tuple[FooterItem, ...]:
    """Parse the items; they have to ascend, hold their payloads, and have the blocks they need."""
    records_end = _HEADER.size + item_count * _ITEM.size
    crc32s = struct.unpack(f"<{(len(body) - records_end) // _CRC32_LENGTH}I", body[records_end:])
    items = []
    position, first = 0, 0
    for fields in _ITEM.iter_unpack(body[_HEADER.size : records_end]):
        extent, payload = Extent(fields[0], fields[1]), Extent(fields[2], fields[3])
        if extent.offset < position:
            raise ValueError(
                f"an item begins at {extent.offset}, before the end of the last one, {position}"
            )
        position = extent.end
        if payload.offset < extent.offset or payload.end > position:
            raise ValueError(
                f"a payload at [{payload.offset}, {payload.end}) reaches out of its item at"
                f" [{extent.offset}, {position})"
            )
        count = block_count(payload, alignment=alignment, block_length=block_length)
        if fields[6] != count:
            raise ValueError(
                f"a payload of {payload.length} bytes has {fields[6]} blocks, expected {count}"
            )
        last = first + count
        items.append(FooterItem(extent, payload, fields[4], fields[5], crc32s[first:last]))
        first = last
    if first != len(crc32s):
        raise ValueError(f"the items have {first} blocks, the footer {len(crc32s)}")
    return tuple(items)
