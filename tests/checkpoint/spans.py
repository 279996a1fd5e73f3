"""Spans: the bytes of a checkpoint that a load plan needs, counted apart from the reader."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

__all__ = ["Need", "PlanKeeper", "needs"]


@dataclass(frozen=True, slots=True)
class Need:
    """What one read item needs of one stored chunk, in bytes.

    `span` runs from the first to the last byte needed, `chunk` is the whole payload, `envelope` is
    what the archive has around it.
    """

    fqn: str
    file: str
    span: int
    chunk: int
    envelope: int


class PlanKeeper(DefaultLoadPlanner):
    """The default planner; keeps the plan that the reader gets."""

    kept: LoadPlan

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        self.kept = super().finish_plan(new_plan)
        return self.kept


def needs(plan: LoadPlan, metadata: Metadata) -> list[Need]:
    """What each tensor item of `plan` needs; items of no elements need nothing and are left out."""
    tensors = [item for item in plan.items if len(item.lengths) and math.prod(item.lengths)]
    return [_need(item, metadata) for item in tensors if item.storage_index.offset is not None]


def _need(item: ReadItem, metadata: Metadata) -> Need:
    """One item's need, from its corner in the chunk and its lengths, in row-major order."""
    described: Any = metadata.state_dict_metadata[item.storage_index.fqn]
    assert isinstance(described, TensorStorageMetadata)
    itemsize = described.properties.dtype.itemsize
    (chunk,) = (chunk for chunk in described.chunks if chunk.offsets == item.storage_index.offset)
    strides = [math.prod(chunk.sizes[dim + 1 :]) for dim in range(len(chunk.sizes))]
    # From the first element to the last: the corners are `lengths - 1` apart in every dimension.
    steps = sum((length - 1) * stride for length, stride in zip(item.lengths, strides, strict=True))
    info = metadata.storage_data[item.storage_index]
    payload = math.prod(chunk.sizes) * itemsize
    return Need(
        fqn=item.storage_index.fqn,
        file=info.relative_path,
        span=(steps + 1) * itemsize,
        chunk=payload,
        envelope=info.length - payload,
    )
