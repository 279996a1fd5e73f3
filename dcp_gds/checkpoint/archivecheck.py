"""Archive check: whether an item's torch.save archive is whole, and which CRC-32s are in it."""

from __future__ import annotations

from dcp_gds.checkpoint.archiveentries import archive_entries
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.locator import Envelopes
from dcp_gds.checkpoint.promiseditem import PromisedItem
from dcp_gds.checkpoint.region import Region, RegionKind
from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.archive import StoredTensor
from dcp_gds.format.envelope import TensorForm
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import FooterItem
from dcp_gds.format.ziplayout import EntryData
from dcp_gds.io.checksum import crc32_combine, crc32_of_bytes

__all__ = ["check_stored", "check_with_footer", "entry_regions"]


def check_stored(promised: PromisedItem, item: LoadItem) -> None:
    """Compare the tensor that an archive holds with what the metadata promise.

    Raises
    ------
    CorruptCheckpointError
        If dtype or size differ, or elements would lie outside the payload.
    """
    stored, place = item.stored, item.place
    assert stored is not None
    assert place is not None
    if (stored.dtype, stored.size) != (promised.dtype, promised.size):
        raise CorruptCheckpointError(
            f"the archive holds {stored.dtype} of size {stored.size}, the metadata promise"
            f" {promised.dtype} of size {promised.size}"
        )
    end = place.offset + place.box.span
    if stored.first < 0 or min(stored.stride, default=0) < 0 or end > stored.storage.length:
        raise CorruptCheckpointError(
            f"the archive's tensor has {stored.storage.length} bytes; with strides {stored.stride}"
            f" its elements would end at {end}"
        )


def check_with_footer(
    side: SideReader,
    item: LoadItem,
    footer_item: FooterItem,
    *,
    envelopes: Envelopes,
    checksums: bool,
) -> None:
    """Look at the archive around a payload whose checksums are in a footer.

    Its bytes are compared with the footer elsewhere. If the footer's CRC-32s are those of what
    torch.save writes around this very payload, there is nothing to be parsed.

    Raises
    ------
    CorruptCheckpointError
        If it is malformed, or has another CRC-32 of the payload than the footer's blocks.
    """
    crc32 = _combined(item, footer_item) if checksums else 0
    if item.stored is not None and _is_dense(item.stored):
        stored = item.stored
        form = TensorForm(stored.dtype, stored.size, stored.stride)
        envelope = envelopes.expected(form, checksum=checksums)
        if (
            envelope is not None
            and envelope.head_crc32 == footer_item.head_crc32
            and crc32_of_bytes(envelope.tail_with(crc32)) == footer_item.tail_crc32
        ):
            return
    payload = next(
        (entry for entry in archive_entries(side, item.item) if entry.extent == item.payload), None
    )
    if payload is None and item.payload.length:
        raise CorruptCheckpointError("no entry of the archive is the payload")
    if payload is not None and checksums and payload.crc32 != crc32:
        raise CorruptCheckpointError(
            f"the archive says that the payload has CRC-32 {payload.crc32:08x}, the blocks of the"
            f" footer say {crc32:08x}"
        )


def entry_regions(
    entries: list[EntryData], payload: Extent, *, fqn: str, payloads: bool
) -> list[Region]:
    """What the CRC-32s of an archive cover. What lies in `payload` counts as payload."""
    regions = []
    for entry in entries:
        inside = payload.offset <= entry.extent.offset and entry.extent.end <= payload.end
        if entry.extent.length and entry.crc32 and (payloads or not inside):
            kind = RegionKind.PAYLOAD if inside else RegionKind.ENTRY
            regions.append(Region(kind, (entry.extent,), (entry.crc32,), fqn))
    return regions


def _combined(item: LoadItem, footer_item: FooterItem) -> int:
    """The CRC-32 of a payload, from those of its blocks."""
    assert item.checks is not None
    crc32 = 0
    for block, block_crc32 in zip(item.checks.blocks, footer_item.block_crc32s, strict=True):
        crc32 = crc32_combine(crc32, block_crc32, second_length=block.length)
    return crc32


def _is_dense(stored: StoredTensor) -> bool:
    """Whether the elements, in some order, are all of the storage."""
    expected = stored.dtype.itemsize
    for stride, extent in sorted(zip(stored.stride, stored.size, strict=True)):
        if extent > 1:
            if stride * stored.dtype.itemsize != expected:
                return False
            expected *= extent
    return not stored.first and (0 in stored.size or expected == stored.storage.length)
