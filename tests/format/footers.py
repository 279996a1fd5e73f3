"""Footers: the bytes of a given footer, put together as a save does, item by item."""

from __future__ import annotations

from collections.abc import Iterable

from dcp_gds.format.footer import Footer, FooterBuilder, FooterItem
from dcp_gds.format.placement import Placement

__all__ = ["encode_footer"]


def encode_footer(footer: Footer, *, order: Iterable[int] | None = None) -> bytes:
    """Return the footer's bytes; `order` is the order in which its items become known."""
    first_blocks = [0]
    for item in footer.items:
        first_blocks.append(first_blocks[-1] + len(item.block_crc32s))
    builder = FooterBuilder(
        token=footer.token,
        alignment=footer.alignment,
        block_length=footer.block_length,
        checksums=footer.checksums,
        item_count=len(footer.items),
        block_count=first_blocks[-1],
    )
    for index in range(len(footer.items)) if order is None else order:
        item = footer.items[index]
        builder.put(
            _placement(item),
            index=index,
            head_crc32=item.head_crc32,
            tail_crc32=item.tail_crc32,
            first_block=first_blocks[index],
            block_crc32s=item.block_crc32s,
        )
    return builder.encode()


def _placement(item: FooterItem) -> Placement:
    extent, payload = item.extent, item.payload
    return Placement(
        extent.offset, extent.length, payload.offset, payload.length, payload.offset, 0
    )
