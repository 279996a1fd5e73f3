"""DCP calls a storage plugin, and fills its own classes, as dcp_gds relies on.

Method: a writer and a reader that record how the installed DCP calls them, and the fields of the
classes that go to disk or between ranks. Where this fails, a new torch needs a look at the plugin.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from concurrent.futures import Future as ThreadFuture
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    FileSystemReader,
    _StorageInfo,
    _StorageReaderTransforms,
)
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult

from tests.contract.recorder import Memory, RecordingReader, RecordingWriter
from tests.ranks import run_on_ranks

LIMIT_S = 60.0
STEPS = [
    "storage_meta",
    "set_up_storage_writer",
    "prepare_local_plan",
    "prepare_global_plan",
    "write_data",
    "finish",
]
READ_STEPS = [
    "read_metadata",
    "set_up_storage_reader",
    "prepare_local_plan",
    "prepare_global_plan",
    "read_data",
]
# Classes whose fields are on disk or travel between ranks. More fields may come; these must stay.
FIELDS: dict[type[Any], list[str]] = {
    WriteResult: ["index", "size_in_bytes", "storage_data"],
    SavePlan: ["items", "storage_data", "planner_data", "usable"],
    LoadPlan: ["items", "storage_data", "planner_data"],
    WriteItem: ["index", "type", "bytes_io_data", "tensor_data"],
    ReadItem: [
        "type",
        "dest_index",
        "dest_offsets",
        "storage_index",
        "storage_offsets",
        "lengths",
    ],
    StorageMeta: ["checkpoint_id", "save_id", "load_id", "modules"],
    MetadataIndex: ["fqn", "offset", "index"],
    dcp_metadata.Metadata: [
        "state_dict_metadata",
        "planner_data",
        "storage_data",
        "storage_meta",
        "version",
    ],
    dcp_metadata.TensorStorageMetadata: ["properties", "size", "chunks"],
    dcp_metadata.ChunkStorageMetadata: ["offsets", "sizes"],
    _StorageInfo: ["relative_path", "offset", "length", "transform_descriptors"],
}
SIGNATURES: list[tuple[Any, list[str]]] = [
    (StorageWriter.reset, ["self", "checkpoint_id"]),
    (StorageWriter.set_up_storage_writer, ["self", "is_coordinator", "args", "kwargs"]),
    (StorageWriter.prepare_local_plan, ["self", "plan"]),
    (StorageWriter.prepare_global_plan, ["self", "plans"]),
    (StorageWriter.write_data, ["self", "plan", "planner"]),
    (StorageWriter.finish, ["self", "metadata", "results"]),
    (StorageWriter.storage_meta, ["self"]),
    (StorageReader.reset, ["self", "checkpoint_id"]),
    (StorageReader.read_metadata, ["self", "args", "kwargs"]),
    (
        StorageReader.set_up_storage_reader,
        ["self", "metadata", "is_coordinator", "args", "kwargs"],
    ),
    (StorageReader.prepare_local_plan, ["self", "plan"]),
    (StorageReader.prepare_global_plan, ["self", "plans"]),
    (StorageReader.read_data, ["self", "plan", "planner"]),
    (SavePlanner.resolve_data, ["self", "write_item"]),
    (LoadPlanner.resolve_tensor, ["self", "read_item"]),
    (LoadPlanner.commit_tensor, ["self", "read_item", "tensor"]),
    (LoadPlanner.load_bytes, ["self", "read_item", "value"]),
    (
        _StorageReaderTransforms.transform_load_stream,
        ["self", "read_item", "transform_descriptors", "raw_stream"],
    ),
]


def state() -> dict[str, Any]:
    return {"w": torch.arange(6.0), "n": 3}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_fields(kind: type[Any]) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    assert names[: len(FIELDS[kind])] == FIELDS[kind]


@pytest.mark.parametrize(
    ("method", "names"), SIGNATURES, ids=[method.__qualname__ for method, _ in SIGNATURES]
)
def test_signatures(method: Any, names: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == names


@pytest.mark.parametrize("base", [StorageWriter, StorageReader])
def test_what_a_plugin_must_implement(base: type[Any]) -> None:
    """A new abstract method would make our classes impossible to create."""
    ours = {StorageWriter: RecordingWriter, StorageReader: RecordingReader}[base]
    assert base.__abstractmethods__ <= set(vars(ours))


def test_a_save() -> None:
    writer = RecordingWriter(Memory())
    returned = save(state(), storage_writer=writer, no_dist=True)
    assert writer.names == STEPS
    calls = dict(writer.calls)
    assert calls["set_up_storage_writer"] == {
        "is_coordinator": True,
        "args": (),
        "rank": 0,
        "use_collectives": True,
    }
    assert calls["finish"] == {"results": [2]}
    assert returned is writer.memory.metadata
    assert CURRENT_DCP_VERSION


def test_checkpoint_id_comes_by_reset_before_all_else() -> None:
    writer, reader = RecordingWriter(memory := Memory()), RecordingReader(memory)
    save(state(), checkpoint_id="there", storage_writer=writer, no_dist=True)
    assert writer.calls[0] == ("reset", {"checkpoint_id": "there"})
    assert writer.names[1:] == STEPS
    load(state(), checkpoint_id="there", storage_reader=reader, no_dist=True)
    assert reader.calls[0] == ("reset", {"checkpoint_id": "there"})
    assert reader.names[1:] == READ_STEPS


def test_a_load() -> None:
    save(state(), storage_writer=RecordingWriter(memory := Memory()), no_dist=True)
    reader = RecordingReader(memory)
    target: dict[str, Any] = {"w": torch.zeros(6), "n": 0}
    load(target, storage_reader=reader, no_dist=True)
    assert reader.names == READ_STEPS
    assert torch.equal(target["w"], torch.arange(6.0))
    assert target["n"] == 3
    calls = dict(reader.calls)
    assert calls["read_metadata"] == {}
    assert calls["set_up_storage_reader"]["rank"] == 0
    # What a rank puts into its plan reaches the coordinator.
    assert calls["prepare_global_plan"] == {"data": ["token"]}
    assert reader.plan is not None
    (tensor,) = (item for item in reader.plan.items if item.storage_index.offset is not None)
    assert tensor.storage_index == MetadataIndex("w", torch.Size([0]))
    assert (tuple(tensor.storage_offsets), tuple(tensor.lengths)) == ((0,), (6,))


def test_metadata_that_cannot_be_read_is_asked_for_by_rank() -> None:
    save(state(), storage_writer=RecordingWriter(memory := Memory()), no_dist=True)
    reader = RecordingReader(memory, fails=1)
    load(state(), storage_reader=reader, no_dist=True)
    assert reader.calls[:2] == [("read_metadata", {}), ("read_metadata", {"rank": 0})]
    assert dict(reader.calls)["set_up_storage_reader"]["use_collectives"] is False
    with pytest.raises(CheckpointException) as caught:
        load(state(), storage_reader=RecordingReader(memory, fails=2), no_dist=True)
    # The error's type is lost here, which is why GDSReader does not raise it from there.
    assert isinstance(caught.value.failures[0][0], AssertionError)


@pytest.mark.parametrize("step", STEPS)
def test_an_error_in_any_step_is_kept_whole(step: str) -> None:
    writer = RecordingWriter(Memory(), fail_in=step)
    with pytest.raises(CheckpointException) as caught:
        save(state(), storage_writer=writer, no_dist=True)
    error, _ = caught.value.failures[0]
    assert isinstance(error, ValueError)
    assert str(error) == step
    assert writer.names[-1] == step


def test_the_keys_of_the_storage_data() -> None:
    save(state(), storage_writer=RecordingWriter(memory := Memory()), no_dist=True)
    assert memory.metadata is not None
    assert set(memory.metadata.storage_data) == {
        MetadataIndex("w", torch.Size([0])),
        MetadataIndex("n"),
    }
    described = memory.metadata.state_dict_metadata["w"]
    assert isinstance(described, dcp_metadata.TensorStorageMetadata)
    assert [tuple(chunk.offsets) for chunk in described.chunks] == [(0,)]
    # The hint is no part of the key.
    assert MetadataIndex("w", [0], 5) == MetadataIndex("w", [0])
    assert hash(MetadataIndex("w", [0], 5)) == hash(MetadataIndex("w", [0]))


def test_a_cached_plan_is_written_again() -> None:
    for cache in (SavePlanner._cached_save_plan, SavePlanner._cached_all_plans):
        cache.clear()
    writer = RecordingWriter(Memory())
    for _ in range(2):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        save(state(), storage_writer=writer, planner=planner, no_dist=True)
    first, second = writer.plans
    assert len(second.items) == len(first.items) == 2
    assert writer.names == [*STEPS, *STEPS]
    SavePlanner._cached_all_plans.clear()
    SavePlanner._cached_save_plan.clear()


def test_an_async_save_stages_by_the_writer() -> None:
    writer = RecordingWriter(memory := Memory())
    assert isinstance(writer, BlockingAsyncStager)
    assert isinstance(writer, AsyncStager)
    assert writer.should_synchronize_after_execute is False
    future = cast("ThreadFuture[Any]", async_save(state(), storage_writer=writer, no_dist=True))
    assert future.result(LIMIT_S) is memory.metadata
    assert writer.names == ["stage", *STEPS]


def test_what_follows_the_pickle_is_ignored(tmp_path: Any) -> None:
    """A trailer behind `.metadata` does not disturb DCP's own reader."""
    save(state(), storage_writer=RecordingWriter(memory := Memory()), no_dist=True)
    data = pickle.dumps(memory.metadata)
    (tmp_path / ".metadata").write_bytes(data + b"trailer" * 9)
    assert FileSystemReader(tmp_path).read_metadata().storage_data is not None


def names_on_rank(use_collectives: bool) -> tuple[list[str], bool, list[str]]:
    """What a rank of two is asked to do in a save and in a load."""
    writer = RecordingWriter(memory := Memory())
    own = {f"w{dist.get_rank()}": torch.ones(3)}
    # Every rank gets the metadata that the coordinator finished.
    memory.metadata = save(own, storage_writer=writer, use_collectives=use_collectives)
    reader = RecordingReader(memory)
    load(own, storage_reader=reader)
    coordinates = dict(writer.calls)["set_up_storage_writer"]["is_coordinator"]
    return writer.names, coordinates, reader.names


@pytest.mark.parametrize("use_collectives", [True, False], ids=["together", "alone"])
def test_on_two_ranks(use_collectives: bool) -> None:
    """Only the coordinator plans for all and finishes, unless ranks do not work together."""
    first, second = run_on_ranks(2, names_on_rank, use_collectives)
    follower = [step for step in STEPS if step not in ("prepare_global_plan", "finish")]
    assert (first[0], first[1]) == (STEPS, True)
    assert (second[0], second[1]) == (follower if use_collectives else STEPS, False)
    assert first[2] == READ_STEPS
    assert second[2] == [step for step in READ_STEPS if step != "prepare_global_plan"]
