"""Partial loads: what loads of all, of some items, and of some rows of a checkpoint come to."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan

from dcp_gds import GDSReader
from dcp_gds.errors import DcpGdsError
from tests.checkpoint.rawbytes import filled_tensor, raw
from tests.checkpoint.refusal import unwrapped
from tests.checkpoint.storage import dcp_load
from tests.faults.damaged import whole_state

__all__ = ["LOADS", "Loads"]

LOADS = ("whole load", "load of some items", "load of some rows")


@dataclass(slots=True)
class Loads:
    """Loads a checkpoint as a whole, in part, and some rows of each tensor."""

    path: Path
    seed: int
    draw: random.Random
    expected: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.expected = whole_state(seed=self.seed)

    def outcomes(self) -> dict[str, str]:
        """What becomes of each kind of load."""
        return {kind: self.outcome(kind) for kind in LOADS}

    def outcome(self, kind: str) -> str:
        """What becomes of one kind of load: the error's name, "right" or "wrong data"."""
        if kind == "load of some items":
            return self._load(self.draw.sample(sorted(self.expected), 8), DefaultLoadPlanner())
        if kind == "load of some rows":
            planner = _RowsPlanner(self.draw)
            return self._load(sorted(self.expected), planner, planner.rows)
        assert kind == "whole load"
        return self._load(sorted(self.expected), DefaultLoadPlanner())

    def _load(
        self,
        names: list[str],
        planner: DefaultLoadPlanner,
        rows: dict[str, list[range]] | None = None,
    ) -> str:
        """Load items, and compare what was asked for."""
        target = {name: _blank(self.expected[name]) for name in names}
        try:
            with GDSReader(self.path) as reader:
                dcp_load(target, storage_reader=reader, planner=planner, no_dist=True)
        except (DcpGdsError, CheckpointException) as error:
            return type(unwrapped(error)).__name__
        right = all(
            _is_right(target[name], self.expected[name], None if rows is None else rows.get(name))
            for name in names
            if rows is None or name in rows
        )
        return "right" if right else "wrong data"


def _blank(value: Any) -> Any:
    """A target for a value."""
    return filled_tensor(value.shape, value.dtype) if isinstance(value, torch.Tensor) else None


def _is_right(loaded: Any, expected: Any, rows: list[range] | None) -> bool:
    """Whether a value came back, or some rows of it."""
    if not isinstance(expected, torch.Tensor):
        return bool(loaded == expected)
    if rows is None:
        return raw(loaded) == raw(expected)
    return all(
        raw(loaded[part.start : part.stop]) == raw(expected[part.start : part.stop])
        for part in rows
    )


class _RowsPlanner(DefaultLoadPlanner):
    """Asks for some rows of each chunk only, and notes which rows of the tensors these are."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw
        self.rows: dict[str, list[range]] = {}

    def create_local_plan(self) -> LoadPlan:
        items = []
        for item in super().create_local_plan().items:
            if item.type is LoadItemType.BYTE_IO or not item.lengths:
                continue
            start = self._draw.randrange(item.lengths[0])
            count = self._draw.randint(1, item.lengths[0] - start)
            first = item.dest_offsets[0] + start
            self.rows.setdefault(item.dest_index.fqn, []).append(range(first, first + count))
            items.append(
                dataclasses.replace(
                    item,
                    storage_offsets=_moved(item.storage_offsets, start),
                    dest_offsets=_moved(item.dest_offsets, start),
                    lengths=torch.Size([count, *item.lengths[1:]]),
                )
            )
        return LoadPlan(items)


def _moved(offsets: torch.Size, rows: int) -> torch.Size:
    return torch.Size([offsets[0] + rows, *offsets[1:]])
