"""Claimed size: what metadata say that tensors take, against what the files can hold.

A planner that loads into an empty state allocates what the metadata say, before anything is read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from dcp_gds.errors import CorruptCheckpointError

__all__ = ["check_claimed_size"]


# A file may have been cut off, and what is left of it be wanted; metadata that promise twice what
# is there are not worth an allocation.
_LOST_FACTOR = 2


def check_claimed_size(metadata: Metadata, directory: Path) -> None:
    """Refuse metadata whose tensors take more bytes than all items, or twice what the files hold.

    Behind a stream extension, which may compress, nothing can be said. A file that is not there may
    be on another node: it counts as the metadata have it.

    Raises
    ------
    CorruptCheckpointError
        With the item that reaches farthest behind its file's end, or else the largest tensor.
    """
    infos = metadata.storage_data
    if any(info.transform_descriptors for info in infos.values()):
        return
    lengths = {
        fqn: _length(entry)
        for fqn, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    promised = sum(lengths.values())
    claimed = sum(info.length for info in infos.values())
    names = {info.relative_path for info in infos.values()}
    ends = {name: _length_of(directory / name) for name in names}
    held = _held(infos.values(), ends)
    if promised <= min(claimed, _LOST_FACTOR * held):
        return
    told = (
        f"the metadata promise tensors of {promised} bytes and items of {claimed}, the files hold"
        f" {held}"
    )
    index, info = max(infos.items(), key=lambda item: _behind(item[1], ends), default=(None, None))
    if index is None or info is None or _behind(info, ends) <= 0:
        largest = max(lengths, key=lambda fqn: lengths[fqn])
        raise CorruptCheckpointError(f"{told}; this is the largest tensor", directory, fqn=largest)
    end = info.offset + info.length
    raise CorruptCheckpointError(
        f"{told}; this item ends at {end}, its file has {ends[info.relative_path]} bytes",
        directory / info.relative_path,
        offset=info.offset,
        fqn=index.fqn,
    )


def _length(entry: TensorStorageMetadata) -> int:
    """Bytes of a tensor."""
    if min(entry.size, default=0) < 0:
        return 0
    return math.prod(entry.size) * entry.properties.dtype.itemsize


def _held(infos: Iterable[_StorageInfo], ends: Mapping[str, int]) -> int:
    """Bytes of items that are in their files; no file holds more than it is long."""
    held: dict[str, int] = {}
    for info in infos:
        end = min(info.offset + info.length, ends[info.relative_path])
        part = max(0, end - info.offset)
        held[info.relative_path] = held.get(info.relative_path, 0) + part
    return sum(min(part, ends[name]) for name, part in held.items())


def _behind(info: _StorageInfo, ends: Mapping[str, int]) -> int:
    """By how much an item reaches behind its file's end."""
    return int(info.offset + info.length - ends[info.relative_path])


def _length_of(path: Path) -> int:
    """Length of a file; without end if it cannot be known, which opening it will explain."""
    try:
        return path.lstat().st_size
    except OSError:
        return sys.maxsize
