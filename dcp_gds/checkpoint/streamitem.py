"""Stream item: one that went through DCP's stream extensions, which only DCP itself can undo."""

from __future__ import annotations

import io
import pickle
from typing import IO

import torch
from torch.distributed.checkpoint.filesystem import _StorageReaderTransforms
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner

from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.errors import CorruptCheckpointError, UnsupportedError

__all__ = ["load_streamed"]


def load_streamed(item: LoadItem, raw: IO[bytes], planner: LoadPlanner) -> None:
    """Load an item through its extensions, whole and in memory, as stock DCP does.

    Raises
    ------
    UnsupportedError
        If an extension is not known here, or a package that it needs is missing.
    CorruptCheckpointError
        If what comes out is not a tensor's archive.
    """
    read_item = item.read_item
    try:
        stream = _StorageReaderTransforms().transform_load_stream(
            read_item, item.transform_descriptors, raw
        )
    except ValueError as error:
        raise UnsupportedError(f"{item.fqn}: {error}") from error
    content = io.BytesIO(stream.read(-1))
    if read_item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(read_item, content)
        return
    try:
        tensor = torch.load(content, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CorruptCheckpointError(
            f"torch.load refuses it: {error}", offset=item.item.offset, fqn=item.fqn
        ) from error
    for dim, (start, length) in enumerate(
        zip(read_item.storage_offsets, read_item.lengths, strict=True)
    ):
        tensor = tensor.narrow(dim, start, length)
    target = planner.resolve_tensor(read_item).detach()
    target.copy_(tensor)
    planner.commit_tensor(read_item, target)
