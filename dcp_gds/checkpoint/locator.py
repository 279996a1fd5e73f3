"""Locator: finds where the items of one shard file are, whoever wrote it."""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from dcp_gds.checkpoint.archiveentries import check_description
from dcp_gds.checkpoint.box import Box
from dcp_gds.checkpoint.loaditem import Checks, LoadItem, Place
from dcp_gds.checkpoint.shardfooter import read_footer
from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.archive import StoredTensor, read_stored_tensor
from dcp_gds.format.envelope import Envelope, EnvelopeCache, TensorForm
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import Footer, FooterItem, block_extents
from dcp_gds.format.metadata import ShardFileRecord
from dcp_gds.io.checksum import crc32_of_bytes

__all__ = ["Envelopes", "Locator"]

_CRC32 = struct.Struct("<I")


class Envelopes:
    """The envelopes that writers of this torch put around tensors, with and without checksums."""

    def __init__(self) -> None:
        self._caches = {checksum: EnvelopeCache(checksum=checksum) for checksum in (True, False)}
        for cache in self._caches.values():
            cache.renew()

    def expected(self, form: TensorForm, *, checksum: bool) -> Envelope | None:
        """The envelope of a form; None if torch.save does not write such tensors."""
        try:
            return self._caches[checksum].get(form)
        except UnsupportedError:
            return None


@dataclass(frozen=True, slots=True)
class _Located:
    """A stored chunk that has been found."""

    payload: Extent
    stored: StoredTensor | None
    checks: Checks | None


class Locator:
    """Finds the items of a shard file.

    Where the metadata tell a contiguous tensor of a known dtype, the envelope that torch.save would
    write is known; if the footer says, or the head's own bytes, that it is the one in the file, the
    payload's place is known and nothing has to be parsed. Everything else goes through torch.load.

    Parameters
    ----------
    side
        The file.
    record
        What the committed metadata say of the file; None if they have no trailer, as a stock
        checkpoint's. A footer is used all the same if there is one: a tool may have rewritten the
        metadata.
    verify
        Whether checksums are wanted.

    Raises
    ------
    CorruptCheckpointError
        If file, footer and record disagree.
    """

    def __init__(
        self,
        side: SideReader,
        *,
        record: ShardFileRecord | None,
        metadata: Metadata,
        envelopes: Envelopes,
        verify: bool,
    ) -> None:
        self._side = side
        self._metadata = metadata
        self._envelopes = envelopes
        self._verify = verify
        self._footer = read_footer(side, record=record)
        items = () if self._footer is None else self._footer.items
        # By the whole extent: an item of no bytes begins where the next one does.
        self._footer_items = {item.extent: item for item in items}
        self._located: dict[Extent, _Located] = {}
        # Models have few forms and tens of thousands of tensors: what is alike is made once.
        self._stored: dict[TensorForm, StoredTensor] = {}
        self._places: dict[tuple[StoredTensor, torch.Size, torch.Size], Place] = {}

    @property
    def footer(self) -> Footer | None:
        """The file's footer; None in a file that has none."""
        return self._footer

    def locate(self, read_item: ReadItem, info: _StorageInfo) -> LoadItem:
        """Find one read item.

        Raises
        ------
        CorruptCheckpointError
            With the item's name, path and offset: a range outside the file, an archive that is
            none, or a head that is not the committed one.
        """
        extent = Extent(info.offset, info.length)
        descriptors = tuple(info.transform_descriptors or ())
        try:
            self._check_inside(extent)
            located = self._located.get(extent)
            if located is None:
                located = self._find(read_item, extent, transformed=bool(descriptors))
                self._located[extent] = located
            place = None if located.stored is None else self._place(read_item, located.stored)
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(
                str(error.args[0]),
                self._side.path,
                offset=extent.offset,
                fqn=read_item.storage_index.fqn,
            ) from error
        return LoadItem(
            read_item,
            extent,
            located.payload,
            located.checks,
            located.stored,
            place,
            transform_descriptors=descriptors,
        )

    def _check_inside(self, extent: Extent) -> None:
        """Raise unless an item lies inside the file."""
        if extent.offset < 0 or extent.length < 0 or extent.end > self._side.length:
            raise CorruptCheckpointError(
                f"the metadata place it at [{extent.offset}, {extent.end}), the file has"
                f" {self._side.length} bytes"
            )

    def _find(self, read_item: ReadItem, extent: Extent, *, transformed: bool) -> _Located:
        """Find a stored chunk."""
        footer_item = self._footer_item(extent)
        if transformed:
            return _Located(extent, None, None)
        if read_item.type == LoadItemType.BYTE_IO:
            return _Located(extent, None, self._checks(footer_item))
        form = self._promised_form(read_item.storage_index)
        checksum = self._footer is None or self._footer.checksums
        envelope = None if form is None else self._envelopes.expected(form, checksum=checksum)
        if form is not None and envelope is not None:
            payload = Extent(extent.offset + len(envelope.head), form.length)
            if self._is_envelope(envelope, payload, extent, footer_item):
                stored = self._stored_tensor(envelope)
                if footer_item is not None:
                    return _Located(payload, stored, self._checks(footer_item))
                return _Located(payload, stored, self._zip_checks(payload, extent))
        return self._parse(extent, footer_item)

    def _stored_tensor(self, envelope: Envelope) -> StoredTensor:
        """What lies in an envelope."""
        form = envelope.form
        stored = self._stored.get(form)
        if stored is None:
            payload = Extent(len(envelope.head), form.length)
            stored = StoredTensor(form.dtype, form.size, form.stride, payload)
            self._stored[form] = stored
        return stored

    def _place(self, read_item: ReadItem, stored: StoredTensor) -> Place:
        """Find a read item's box in its stored tensor."""
        key = (stored, read_item.storage_offsets, read_item.lengths)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _place(read_item, stored)
        return place

    def _footer_item(self, extent: Extent) -> FooterItem | None:
        """The footer's entry of an item; None in a file that has no footer."""
        if self._footer is None:
            return None
        footer_item = self._footer_items.get(extent)
        if footer_item is None:
            raise CorruptCheckpointError(
                f"the metadata place it at [{extent.offset}, {extent.end}), the footer does not"
            )
        return footer_item

    def _promised_form(self, index: MetadataIndex) -> TensorForm | None:
        """The form that the metadata promise: the dtype and the chunk's size."""
        entry = self._metadata.state_dict_metadata.get(index.fqn)
        if not isinstance(entry, TensorStorageMetadata):
            return None
        hint = index.index
        chunks = entry.chunks
        if hint is not None and 0 <= hint < len(chunks) and chunks[hint].offsets == index.offset:
            return TensorForm.contiguous(entry.properties.dtype, chunks[hint].sizes)
        for chunk in chunks:
            if chunk.offsets == index.offset:
                return TensorForm.contiguous(entry.properties.dtype, chunk.sizes)
        return None

    def _is_envelope(
        self, envelope: Envelope, payload: Extent, extent: Extent, footer_item: FooterItem | None
    ) -> bool:
        """Whether the item's archive is this envelope around a payload."""
        if payload.end + len(envelope.tail) != extent.end:
            return False
        if footer_item is not None:
            return (payload, envelope.head_crc32) == (footer_item.payload, footer_item.head_crc32)
        return self._side.read(Extent(extent.offset, len(envelope.head))) == envelope.head

    def _parse(self, extent: Extent, footer_item: FooterItem | None) -> _Located:
        """Let torch.load say what is in an archive, once its description is known to be whole."""
        if footer_item is not None:
            self._check_envelope(extent, footer_item)
        # A footer's checksums tell what was saved, and not whether that is a tensor of torch.save.
        compare = footer_item is None and self._verify
        check_description(self._side, extent, compare=compare)
        with self._side.view(extent) as view:
            stored = read_stored_tensor(view, archive_length=extent.length)
        payload = Extent(extent.offset + stored.storage.offset, stored.storage.length)
        if footer_item is None:
            return _Located(payload, stored, self._zip_checks(payload, extent))
        if payload != footer_item.payload:
            raise CorruptCheckpointError(
                f"its archive has the payload at [{payload.offset}, {payload.end}), the footer at"
                f" [{footer_item.payload.offset}, {footer_item.payload.end})"
            )
        return _Located(payload, stored, self._checks(footer_item))

    def _check_envelope(self, extent: Extent, footer_item: FooterItem) -> None:
        """Compare head and tail of an archive with the footer."""
        payload = footer_item.payload
        head = Extent(extent.offset, payload.offset - extent.offset)
        tail = Extent(payload.end, extent.end - payload.end)
        for name, part, expected in (
            ("head", head, footer_item.head_crc32),
            ("tail", tail, footer_item.tail_crc32),
        ):
            computed = crc32_of_bytes(self._side.read(part))
            if computed != expected:
                raise CorruptCheckpointError(
                    f"its {name} has CRC-32 {computed:08x}, the footer says {expected:08x}"
                )

    def _checks(self, footer_item: FooterItem | None) -> Checks | None:
        """The checks that a footer offers."""
        if footer_item is None or self._footer is None or not self._footer.checksums:
            return None
        if not self._verify:
            return None
        blocks = block_extents(
            footer_item.payload,
            alignment=self._footer.alignment,
            block_length=self._footer.block_length,
        )
        return Checks(tuple(blocks), footer_item.block_crc32s, partial=True)

    def _zip_checks(self, payload: Extent, extent: Extent) -> Checks | None:
        """The check that a stock archive offers: the CRC-32 right behind the payload."""
        if not self._verify or not payload.length or payload.end + 8 > extent.end:
            return None
        descriptor = self._side.read(Extent(payload.end, 8))
        (crc32,) = _CRC32.unpack_from(descriptor, 4)
        # Zero is what torch.save writes when it computes none.
        if descriptor[:4] != b"PK\x07\x08" or not crc32:
            return None
        return Checks((payload,), (crc32,), partial=False)


def _place(read_item: ReadItem, stored: StoredTensor) -> Place:
    """Find a read item's box in its stored tensor."""
    starts, sizes = read_item.storage_offsets, tuple(read_item.lengths)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    if len(ends) != len(stored.size) or any(map(operator.gt, ends, stored.size)):
        raise CorruptCheckpointError(
            f"the plan, made from the metadata, reads up to {tuple(ends)}, the stored tensor has"
            f" size {stored.size}"
        )
    itemsize = stored.dtype.itemsize
    strides = tuple(stride * itemsize for stride in stored.stride)
    offset = stored.first + sum(map(operator.mul, starts, strides))
    return Place(Box(sizes, strides, itemsize), offset)
