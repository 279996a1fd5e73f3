"""Promised item: what the metadata say of one stored item, and whether that fits together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent

__all__ = ["PromisedItem", "check_apart", "promised_items"]

Report = Callable[[CorruptCheckpointError], None]


@dataclass(frozen=True, slots=True)
class PromisedItem:
    """An item as the metadata have it.

    Parameters
    ----------
    read_item
        Asks for all of it.
    info
        Where it is.
    dtype
        The tensor's; None for a byte item.
    """

    read_item: ReadItem
    info: _StorageInfo
    dtype: torch.dtype | None

    @property
    def fqn(self) -> str:
        """Fully qualified name in the checkpoint."""
        return str(self.read_item.storage_index.fqn)

    @property
    def extent(self) -> Extent:
        """The whole item in its file."""
        return Extent(self.info.offset, self.info.length)

    @property
    def size(self) -> tuple[int, ...]:
        """Of the stored chunk of a tensor, in elements."""
        return tuple(self.read_item.lengths)

    @property
    def payload_length(self) -> int:
        """Bytes of the tensor, or of the byte item."""
        if self.dtype is None:
            return int(self.info.length)
        return math.prod(self.size) * self.dtype.itemsize


def promised_items(metadata: Metadata, *, path: Path, report: Report) -> list[PromisedItem]:
    """Return the items of a metadata file that have a place.

    Parameters
    ----------
    path
        The metadata file, for messages.
    report
        Called with everything that does not fit together: an item without a place, a place without
        an item, chunks outside their tensor or that do not fill it.
    """
    places = dict(metadata.storage_data)
    items = []
    for fqn, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            _check_chunks(fqn, entry, path=path, report=report)
            dtype = entry.properties.dtype
            wanted = list(_read_items(fqn, entry.chunks))
        else:
            dtype = None
            nothing = torch.Size([0])
            index = MetadataIndex(fqn)
            wanted = [ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing)]
        for read_item in wanted:
            info = places.pop(read_item.storage_index, None)
            if info is None:
                report(CorruptCheckpointError("the metadata do not say where it is", path, fqn=fqn))
            else:
                items.append(PromisedItem(read_item, info, dtype))
    for index in places:
        report(
            CorruptCheckpointError(
                "the metadata say where it is, and not what it is", path, fqn=index.fqn
            )
        )
    return items


def check_apart(items: list[PromisedItem], *, path: Path, report: Report) -> None:
    """Report items of one shard file that share bytes."""
    taken = sorted((item.extent, item.fqn) for item in items if item.extent.length > 0)
    end, last = 0, ""
    for extent, fqn in taken:
        if extent.offset < end:
            report(
                CorruptCheckpointError(
                    f"it begins at {extent.offset}, before the end of {last}, {end}",
                    path,
                    offset=extent.offset,
                    fqn=fqn,
                )
            )
        if extent.end > end:
            end, last = extent.end, fqn


def _read_items(fqn: str, chunks: list[ChunkStorageMetadata]) -> Iterator[ReadItem]:
    """Ask for all of each chunk of a tensor."""
    for number, chunk in enumerate(chunks):
        index = MetadataIndex(fqn, chunk.offsets, number)
        start = torch.Size([0] * len(chunk.sizes))
        yield ReadItem(LoadItemType.TENSOR, index, chunk.offsets, index, start, chunk.sizes)


def _check_chunks(fqn: str, entry: TensorStorageMetadata, *, path: Path, report: Report) -> None:
    """Report chunks that lie outside their tensor, or do not fill it."""
    filled = 0
    for chunk in entry.chunks:
        bounds = list(itertools.zip_longest(chunk.offsets, chunk.sizes, entry.size, fillvalue=-1))
        if any(offset < 0 or size < 0 or offset + size > whole for offset, size, whole in bounds):
            report(
                CorruptCheckpointError(
                    f"a chunk of size {tuple(chunk.sizes)} at {tuple(chunk.offsets)} lies outside"
                    f" the tensor of size {tuple(entry.size)}",
                    path,
                    fqn=fqn,
                )
            )
        filled += math.prod(chunk.sizes)
    if filled != math.prod(entry.size):
        report(
            CorruptCheckpointError(
                f"its chunks have {filled} elements, the tensor of size {tuple(entry.size)} has"
                f" {math.prod(entry.size)}",
                path,
                fqn=fqn,
            )
        )
