"""Metadata: the file `.metadata`, a pickle that stock DCP loads, with a trailer that it ignores."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.relativepath import safe_relative_path
from dcp_gds.format.trailer import ShardFileRecord, Trailer, encode_trailer, split_metadata
from dcp_gds.format.unpickler import unpickle

__all__ = [
    "ShardFileRecord",
    "Trailer",
    "dump_metadata",
    "encode_trailer",
    "load_metadata",
    "safe_relative_path",
    "split_metadata",
]

# The oldest protocol that Python writes by default since 3.8: any Python that runs DCP reads it.
_PICKLE_PROTOCOL = 4


def dump_metadata(
    metadata: Metadata, *, token: str, shard_files: Iterable[ShardFileRecord]
) -> bytes:
    """Return the metadata file's bytes.

    Parameters
    ----------
    metadata
        Of stock classes only, or stock DCP could not load it without dcp_gds.
    token
        The save's: 32 lower-case hexadecimal digits.
    shard_files
        All files that `metadata` refers to.
    """
    pickled = pickle.dumps(metadata, protocol=_PICKLE_PROTOCOL)
    trailer = Trailer(token, len(pickled), zlib.crc32(pickled), tuple(shard_files))
    return pickled + encode_trailer(trailer)


def load_metadata(
    data: bytes | memoryview, *, path: str | os.PathLike[str], allow: Iterable[str] = ()
) -> Metadata:
    """Load the pickle of a metadata file, without running anything that the file chooses.

    Parameters
    ----------
    data
        The pickle, without a trailer.
    path
        The file, for messages.
    allow
        Names, as "module.qualname", of what a custom planner or writer puts into its metadata. The
        file can call those as it likes.

    Raises
    ------
    UnsupportedError
        If the pickle names something that is neither stock DCP's nor allowed.
    CorruptCheckpointError
        If it is broken, or holds anything but metadata, or a shard file's path leads elsewhere.
    """
    allowed = frozenset(allow)
    loaded = unpickle(data, path=path, allow=allowed)
    try:
        return _checked(loaded, path=path, allow=allowed)
    except (AttributeError, KeyError, TypeError) as error:  # a field is missing, or of another type
        raise CorruptCheckpointError(f"the metadata are malformed: {error}", path) from error


def _checked(loaded: object, *, path: str | os.PathLike[str], allow: frozenset[str]) -> Metadata:
    """Return the metadata, or raise if anything that DCP or dcp_gds looks at has a wrong type."""
    if type(loaded) is not Metadata:
        raise TypeError(f"{type(loaded).__name__} in place of Metadata")
    # Not by attributes: their declared types are what a file need not keep to.
    fields = vars(loaded)
    for fqn, entry in _as_dict(fields["state_dict_metadata"]).items():
        if type(fqn) is not str:
            raise TypeError(f"{type(fqn).__name__} in place of an fqn")
        if type(entry) is not BytesStorageMetadata and not _is_tensor_entry(entry):
            raise CorruptCheckpointError("the metadata of this item are malformed", path, fqn=fqn)
    names = set()
    for index, info in _as_dict(fields["storage_data"]).items():
        if not _is_index(index):
            raise TypeError(f"{type(index).__name__} in place of an index, or a malformed one")
        if not _is_storage_info(info, allow=allow):
            raise CorruptCheckpointError("its place in a file is malformed", path, fqn=index.fqn)
        names.add(info.relative_path)
    for name in names:
        safe_relative_path(name, path=path)
    return loaded


def _as_dict(value: object) -> dict[Any, Any]:
    """Return a field of the metadata that has to be a dict."""
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} in place of a dict")
    return value


def _is_tensor_entry(entry: object) -> bool:
    """Whether a value of `state_dict_metadata` is that of a tensor, down to its sizes."""
    if type(entry) is not TensorStorageMetadata:
        return False
    fields = vars(entry)
    properties, chunks = fields["properties"], fields["chunks"]
    return (
        type(properties) is TensorProperties
        and isinstance(vars(properties)["dtype"], torch.dtype)
        and type(fields["size"]) is torch.Size
        and type(chunks) is list
        and all(type(chunk) is ChunkStorageMetadata and _has_sizes(vars(chunk)) for chunk in chunks)
    )


def _has_sizes(chunk: dict[str, Any]) -> bool:
    """Whether the fields of a chunk's metadata are sizes."""
    return type(chunk["offsets"]) is torch.Size and type(chunk["sizes"]) is torch.Size


def _is_index(index: object) -> bool:
    """Whether a key of `storage_data` is one."""
    if type(index) is not MetadataIndex:
        return False
    fields = vars(index)
    return (
        type(fields["fqn"]) is str
        and isinstance(fields.get("offset"), torch.Size | None)
        and isinstance(fields.get("index"), int | None)
    )


def _is_storage_info(info: Any, *, allow: frozenset[str]) -> bool:
    """Whether a value of `storage_data` is stock DCP's, or an allowed one with the same fields."""
    cls = type(info)
    if cls is not _StorageInfo and f"{cls.__module__}.{cls.__qualname__}" not in allow:
        return False
    return (
        type(info.relative_path) is str
        and type(info.offset) is int
        and type(info.length) is int
        and info.offset >= 0
        and info.length >= 0
        and isinstance(getattr(info, "transform_descriptors", None), list | tuple | None)
    )
