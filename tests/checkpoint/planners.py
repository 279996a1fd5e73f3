"""Planners: save and load planners that use every freedom that DCP gives them."""

from __future__ import annotations

import io
import weakref
from typing import Any, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, WriteItem, WriteItemType

__all__ = [
    "CommittingLoadPlanner",
    "HalfPlanner",
    "RandomPlanner",
    "RawBytesLoadPlanner",
    "RawBytesPlanner",
    "RenamingPlanner",
    "ScalingPlanner",
]


class HalfPlanner(DefaultSavePlanner):
    """Saves tensors as float16: allocates in `resolve_data`, as DCP's documentation shows.

    `alive_max` is the most resolved tensors that existed at one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self.alive_max = 0

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        for item in plan.items:
            if item.tensor_data is not None:
                item.tensor_data.properties.dtype = torch.float16
        return plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        data = super().resolve_data(write_item)
        if isinstance(data, io.BytesIO):
            return data
        half = data.to(torch.float16)
        self._alive.add(half)
        self.alive_max = max(self.alive_max, len(self._alive))
        return half


class ScalingPlanner(DefaultSavePlanner):
    """Saves three times each value, through `transform_object`, from a view that is not dense."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        resolved = super().transform_object(write_item, object)
        if write_item.type == WriteItemType.BYTE_IO:
            return resolved
        return torch.stack([resolved * 3, resolved], dim=-1)[..., 0]


class RandomPlanner(DefaultSavePlanner):
    """Gives other random bits at every call, as stochastic rounding does."""

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        data = super().resolve_data(write_item)
        return data if isinstance(data, io.BytesIO) else torch.rand_like(data)


class RenamingPlanner(DefaultSavePlanner):
    """Prefixes every key."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        renamed = {f"ema_{key}": value for key, value in state_dict.items()}
        super().set_up_planner(renamed, storage_meta, is_coordinator)


class RawBytesPlanner(DefaultSavePlanner):
    """Saves a `bytes` value as it is, without the archive that DCP puts around it."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if isinstance(object, bytes):
            return io.BytesIO(object)
        return super().transform_object(write_item, object)


class RawBytesLoadPlanner(DefaultLoadPlanner):
    """Takes the bytes as they are."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.original_state_dict[read_item.dest_index.fqn] = value.read()


class CommittingLoadPlanner(DefaultLoadPlanner):
    """Lets the reader fill a buffer of its own making and copies it on `commit_tensor`.

    `committed` counts how often each shard was committed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[MetadataIndex, int] = {}

    def transform_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> torch.Tensor:
        narrowed = super().transform_tensor(read_item, tensor)
        return torch.full_like(narrowed, 77)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        index = read_item.dest_index
        self.committed[index] = self.committed.get(index, 0) + 1
        whole = self.lookup_tensor(index)
        target = super().transform_tensor(read_item, whole)
        cast(torch.Tensor, target).copy_(tensor)
