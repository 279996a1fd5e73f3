"""Recorder: a storage writer, stager and reader that note how DCP calls them and keep items in
memory."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

__all__ = ["Call", "Memory", "RecordingReader", "RecordingWriter"]

Call = tuple[str, dict[str, Any]]


class Memory:
    """What a recording writer saved."""

    def __init__(self) -> None:
        self.metadata: Metadata | None = None
        self.items: dict[str, torch.Tensor | bytes] = {}


class RecordingWriter(StorageWriter, BlockingAsyncStager):
    """Notes every call. `calls` holds names and arguments in order."""

    def __init__(self, memory: Memory, *, fail_in: str = "") -> None:
        BlockingAsyncStager.__init__(self)
        self.memory = memory
        self.calls: list[Call] = []
        self.plans: list[SavePlan] = []
        self._fail_in = fail_in
        self._path = "before"

    @property
    def names(self) -> list[str]:
        """Names of the calls so far."""
        return [name for name, _ in self.calls]

    @property
    def checkpoint_id(self) -> str:
        return self._path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._note("reset", checkpoint_id=checkpoint_id)
        self._path = str(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        self._note("storage_meta")
        return StorageMeta(checkpoint_id=self._path, save_id="token")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._note("set_up_storage_writer", is_coordinator=is_coordinator, args=args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._note("prepare_local_plan")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._note("prepare_global_plan", count=len(plans))
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self._note("write_data", items=len(plan.items))
        self.plans.append(plan)
        for item in plan.items:
            value = planner.resolve_data(item)
            kept = value.getvalue() if isinstance(value, io.BytesIO) else value.detach().clone()
            self.memory.items[item.index.fqn] = kept
        results = [WriteResult(item.index, 1, _StorageInfo("file", 0, 1)) for item in plan.items]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self._note("finish", results=[len(of_rank) for of_rank in results])
        metadata.storage_data = {
            result.index: result.storage_data for of_rank in results for result in of_rank
        }
        self.memory.metadata = metadata

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        self._note("stage")
        return super().stage(state_dict)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def _note(self, name: str, **arguments: Any) -> None:
        """Note a call, and fail in the one that was chosen."""
        self.calls.append((name, arguments))
        if name == self._fail_in:
            raise ValueError(name)


class RecordingReader(StorageReader):
    """Notes every call; gives back what the writer kept."""

    def __init__(self, memory: Memory, *, fails: int = 0) -> None:
        super().__init__()
        self.memory = memory
        self.calls: list[Call] = []
        self.plan: LoadPlan | None = None
        self._fails = fails

    @property
    def names(self) -> list[str]:
        """Names of the calls so far."""
        return [name for name, _ in self.calls]

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.calls.append(("reset", {"checkpoint_id": checkpoint_id}))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self.calls.append(("read_metadata", kwargs))
        if self._fails:
            self._fails -= 1
            raise FileNotFoundError("absent")
        assert self.memory.metadata is not None
        return self.memory.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self.calls.append(("set_up_storage_reader", {"is_coordinator": is_coordinator, **kwargs}))

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        self.calls.append(("prepare_local_plan", {}))
        plan.storage_data = "token"
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        self.calls.append(("prepare_global_plan", {"data": [plan.storage_data for plan in plans]}))
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        self.calls.append(("read_data", {}))
        self.plan = plan
        for item in plan.items:
            kept = self.memory.items[item.storage_index.fqn]
            if item.type == LoadItemType.BYTE_IO:
                assert isinstance(kept, bytes)
                planner.load_bytes(item, io.BytesIO(kept))
            else:
                assert isinstance(kept, torch.Tensor)
                target = planner.resolve_tensor(item).detach()
                target.copy_(kept)
                planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True
