"""Stream item: one that went through DCP's stream extensions, which only DCP itself can undo."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import IO

import torch
from torch.distributed.checkpoint.filesystem import _StorageReaderTransforms
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner

from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.loadtarget import check_dtype
from dcp_gds.errors import CorruptCheckpointError, UnsupportedError

__all__ = ["load_streamed"]


def load_streamed(
    item: LoadItem,
    raw: IO[bytes],
    planner: LoadPlanner,
    *,
    strict_dtype: bool,
    check_bytes: Callable[[str, io.BytesIO], None],
) -> None:
    """Load an item through its extensions, whole and in memory, as stock DCP does.

    Raises
    ------
    UnsupportedError
        If an extension is not known here, or a package that it needs is missing.
    ConfigError
        If its dtype is not the target's and `strict_dtype` is set.
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
        check_bytes(item.fqn, content)
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
    check_dtype(item.fqn, tensor.dtype, target.dtype, strict=strict_dtype)
    target.copy_(tensor)
    planner.commit_tensor(read_item, target)
