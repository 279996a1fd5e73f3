"""Listing: what the metadata of a checkpoint say about its items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from dcp_gds.checkpoint.committed import metadata_files, read_metadata_file
from dcp_gds.errors import CorruptCheckpointError

__all__ = ["Entry", "Listing", "read_listings"]

BYTE_ITEM_DTYPE = "bytes"


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored item: a chunk of a tensor, or a byte item.

    Parameters
    ----------
    fqn, dtype
        Name and dtype without "torch."; "bytes" for a byte item.
    tensor_shape, shape, chunk_offsets
        Shape of the whole tensor, shape of this chunk, and where the chunk begins in the tensor;
        None for a byte item.
    bytes
        Payload: elements times their size, or the byte item's length.
    file, offset, length
        The shard file, relative to the checkpoint, and the item's extent in it in bytes. That of a
        tensor is longer than its payload by the archive around it.
    """

    fqn: str
    dtype: str
    tensor_shape: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    chunk_offsets: tuple[int, ...] | None
    bytes: int
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of one metadata file, sorted by name and place in the tensor.

    Parameters
    ----------
    metadata_file
        Name of the file that was read.
    token
        The save's token if dcp_gds wrote it; None for another writer.
    entries
        One for each stored item.
    """

    metadata_file: str
    token: str | None
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        """Payload of all entries."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def files(self) -> frozenset[str]:
        """The shard files that hold the entries."""
        return frozenset(entry.file for entry in self.entries)


def read_listings(path: Path, *, allow: Iterable[str] = ()) -> list[Listing]:
    """Read what a checkpoint holds, from its `.metadata` or else from those of its ranks.

    Parameters
    ----------
    path
        The checkpoint's directory, or one metadata file.
    allow
        Names ("module.Class") that the metadata may refer to besides DCP's own.

    Raises
    ------
    NotCommittedError
        If there are no metadata.
    CorruptCheckpointError, UnsupportedError
        If they are damaged, or name a class that is not allowed.
    TransferError
        If a file cannot be read.
    """
    names = tuple(allow)
    # Who names a file by a link means it; links that a checkpoint holds are not followed.
    files = [path.resolve()] if path.is_file() else metadata_files(path)
    return [_read_listing(file, allow=names) for file in files]


def _read_listing(file: Path, *, allow: tuple[str, ...]) -> Listing:
    """Read one metadata file."""
    committed = read_metadata_file(file, allow=allow)
    entries = sorted(
        _entries(committed.metadata, file=file),
        key=lambda entry: (entry.fqn, entry.chunk_offsets or ()),
    )
    return Listing(file.name, committed.token, tuple(entries))


def _entries(metadata: Metadata, *, file: Path) -> Iterator[Entry]:
    """The entries in the order of the metadata."""
    for fqn, stored in metadata.state_dict_metadata.items():
        if not isinstance(stored, TensorStorageMetadata):
            place = _place(metadata, MetadataIndex(fqn), file=file)
            name = place.relative_path
            yield Entry(
                fqn,
                BYTE_ITEM_DTYPE,
                None,
                None,
                None,
                place.length,
                name,
                place.offset,
                place.length,
            )
            continue
        dtype = stored.properties.dtype
        for chunk in stored.chunks:
            place = _place(metadata, MetadataIndex(fqn, chunk.offsets), file=file)
            yield Entry(
                fqn=fqn,
                dtype=str(dtype).removeprefix("torch."),
                tensor_shape=tuple(stored.size),
                shape=tuple(chunk.sizes),
                chunk_offsets=tuple(chunk.offsets),
                bytes=chunk.sizes.numel() * dtype.itemsize,
                file=place.relative_path,
                offset=place.offset,
                length=place.length,
            )


def _place(metadata: Metadata, index: MetadataIndex, *, file: Path) -> _StorageInfo:
    """Where an item is stored; `load_metadata` has seen to it that places are well-formed."""
    place: _StorageInfo | None = metadata.storage_data.get(index)
    if place is None:
        raise CorruptCheckpointError("the metadata do not say where it is", file, fqn=index.fqn)
    return place
