"""What PyTorch's own tests ask of a file-system checkpoint holds for GDSWriter and GDSReader.

Method: the behaviours of those tests, written anew: modules and shards that are saved, changed and
loaded, other shardings on load, tensors for shards and the reverse, stateful objects, overwriting.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import CheckpointExistsError
from tests.checkpoint.refusal import refused
from tests.checkpoint.storage import dcp_load, dcp_save, load, save
from tests.ranks import Ranks

LIMIT_S = 120.0
SHARDED = pytest.mark.parametrize("world_size", [2, 4])


class Network(nn.Module):
    """Layers, a buffer that is no parameter, and extra state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(5, 9)
        self.norm = nn.BatchNorm1d(9)
        self.second = nn.Linear(9, 3)
        self.register_buffer("steps", torch.tensor(seed))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.second(self.norm(self.first(batch)).relu()))


class Counter:
    """A stateful object that is no module."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.loaded = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "tensor": torch.full((3,), float(self.value))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
        assert state["tensor"].eq(self.value).all()
        self.loaded += 1


def same_state(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_a_module_is_saved_and_loaded(tmp_path: Path) -> None:
    saved, other = Network(1), Network(2)
    assert not same_state(saved.state_dict(), other.state_dict())
    save(saved.state_dict(), tmp_path)
    state = other.state_dict()
    load(state, tmp_path)
    other.load_state_dict(state)
    assert same_state(saved.state_dict(), other.state_dict())
    batch = torch.randn(4, 5)
    assert torch.equal(saved.eval()(batch), other.eval()(batch))


def test_loading_is_in_place(tmp_path: Path) -> None:
    model = Network(1)
    before = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    save(model.state_dict(), tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load(model.state_dict(), tmp_path)
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == before
    assert same_state(model.state_dict(), Network(1).state_dict())


def test_stateful_objects_and_plain_values(tmp_path: Path) -> None:
    model, counter = Network(1), Counter(7)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    state = {"model": model, "counter": counter, "optimizer": optimizer, "epoch": 3, "tag": "a"}
    save(dict(state), tmp_path)
    other, other_counter = Network(2), Counter(0)
    other_optimizer = torch.optim.Adam(other.parameters())
    other(torch.randn(4, 5)).sum().backward()
    other_optimizer.step()
    target = {
        "model": other,
        "counter": other_counter,
        "optimizer": other_optimizer,
        "epoch": 0,
        "tag": "",
    }
    load(target, tmp_path)
    assert same_state(model.state_dict(), other.state_dict())
    assert (other_counter.value, other_counter.loaded) == (7, 1)
    assert (target["epoch"], target["tag"]) == (3, "a")
    for number, expected in optimizer.state_dict()["state"].items():
        assert same_state(expected, other_optimizer.state_dict()["state"][number])


def test_what_the_metadata_says(tmp_path: Path) -> None:
    save({"w": torch.ones(3, 4, dtype=torch.bfloat16), "n": 1}, tmp_path)
    metadata = GDSReader(tmp_path).read_metadata()
    described = metadata.state_dict_metadata["w"]
    assert isinstance(described, TensorStorageMetadata)
    assert described.properties.dtype is torch.bfloat16
    assert described.size == torch.Size([3, 4])
    assert [tuple(chunk.sizes) for chunk in described.chunks] == [(3, 4)]
    assert isinstance(metadata.state_dict_metadata["n"], BytesStorageMetadata)
    assert metadata.version is not None
    assert metadata.planner_data == {"w": ("w",), "n": ("n",)}


def test_keys_in_another_order_and_fewer(tmp_path: Path) -> None:
    save({name: torch.full((4,), float(n)) for n, name in enumerate("abcd")}, tmp_path)
    target = {name: torch.zeros(4) for name in "dba"}
    load(target, tmp_path)
    assert [int(tensor[0]) for tensor in target.values()] == [3, 1, 0]
    assert list(target) == ["d", "b", "a"]


def test_overwriting(tmp_path: Path) -> None:
    target = {"x": torch.zeros(5)}
    save({"x": torch.full((5,), 1.0)}, tmp_path)
    with refused(CheckpointExistsError, tmp_path):
        save({"x": torch.full((5,), 2.0)}, tmp_path, overwrite=False)
    load(target, tmp_path)
    assert target["x"].eq(1).all()
    save({"x": torch.full((5,), 3.0), "y": torch.ones(2)}, tmp_path, overwrite=True)
    load(target, tmp_path)
    assert target["x"].eq(3).all()


def test_a_reader_reads_what_is_there_now(tmp_path: Path) -> None:
    """One reader for many loads, with saves in between."""
    target = {"x": torch.zeros(5)}
    with GDSReader(tmp_path) as reader:
        for number in range(3):
            save({"x": torch.full((5,), float(number))}, tmp_path, overwrite=True)
            dcp_load(target, storage_reader=reader, no_dist=True)
            assert target["x"].eq(number).all()


def test_an_empty_state(tmp_path: Path) -> None:
    save({}, tmp_path)
    target: dict[str, Any] = {}
    load(target, tmp_path)
    assert target == {}
    assert (tmp_path / ".metadata").exists()


def test_async_then_load(tmp_path: Path) -> None:
    model = Network(1)
    with GDSWriter(tmp_path) as writer:
        future = async_save({"model": model}, storage_writer=writer)
        with torch.no_grad():
            model.first.weight.zero_()
        cast("Future[Any]", future).result(LIMIT_S)
    load({"model": model}, tmp_path)
    assert same_state(model.state_dict(), Network(1).state_dict())


WHOLE = torch.arange(7 * 6, dtype=torch.float32).view(7, 6)


def cut(whole: torch.Tensor, *placements: Placement) -> DTensor:
    shape = {1: (dist.get_world_size(),), 2: (2, dist.get_world_size() // 2)}[len(placements)]
    mesh = init_device_mesh("cpu", shape)
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


PLACEMENTS: dict[str, tuple[Placement, ...]] = {
    "rows": (Shard(0),),
    "columns": (Shard(1),),
    "whole": (Replicate(),),
    "rows-columns": (Shard(0), Shard(1)),
    "columns-rows": (Shard(1), Shard(0)),
    "copies-rows": (Replicate(), Shard(0)),
}


def every_placement_to_every_other(path: Path) -> list[str]:
    """Save in each placement, load in each; what differs on this rank."""
    wrong = []
    for before, placements in PLACEMENTS.items():
        state = {"w": cut(WHOLE, *placements)}
        dcp_save(state, storage_writer=GDSWriter(path / before))
        for after, others in PLACEMENTS.items():
            target = {"w": cut(torch.zeros_like(WHOLE), *others)}
            dcp_load(target, storage_reader=GDSReader(path / before))
            if not torch.equal(target["w"].to_local(), cut(WHOLE, *others).to_local()):
                wrong.append(f"{before} to {after}")
    return wrong


def shards_and_tensors(path: Path) -> bool:
    """Shards load into a plain tensor, and a plain tensor into shards."""
    dcp_save({"w": cut(WHOLE, Shard(0))}, storage_writer=GDSWriter(path / "shards"))
    plain = torch.zeros_like(WHOLE)
    dcp_load({"w": plain}, storage_reader=GDSReader(path / "shards"))
    dcp_save({"w": WHOLE}, storage_writer=GDSWriter(path / "plain"))
    shard = cut(torch.zeros_like(WHOLE), Shard(1))
    dcp_load({"w": shard}, storage_reader=GDSReader(path / "plain"))
    local = cut(WHOLE, Shard(1)).to_local()
    return torch.equal(plain, WHOLE) and torch.equal(shard.to_local(), local)


def bytes_and_shards(path: Path) -> tuple[object, bool]:
    """Values that are no tensors come to every rank, beside shards."""
    dcp_save(
        {"w": cut(WHOLE, Shard(0)), "config": {"lr": 0.5, "names": ["a"]}},
        storage_writer=GDSWriter(path),
    )
    target: dict[str, Any] = {
        "w": cut(torch.zeros_like(WHOLE), Shard(0)),
        "config": {"lr": 0.0, "names": [""]},
    }
    dcp_load(target, storage_reader=GDSReader(path))
    local = cut(WHOLE, Shard(0)).to_local()
    return target["config"], torch.equal(target["w"].to_local(), local)


def meta_target(path: Path) -> bool:
    """A target on the meta device is given memory by DCP before the load."""
    dcp_save({"w": WHOLE}, storage_writer=GDSWriter(path))
    target = {"w": torch.empty_like(WHOLE, device="meta")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP calls what torch is about to deprecate
        dcp_load(target, storage_reader=GDSReader(path))
    return torch.equal(target["w"], WHOLE)


@SHARDED
def test_resharding(world_size: int, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    assert ranks(world_size).run(every_placement_to_every_other, tmp_path) == [[]] * world_size


@SHARDED
def test_shards_for_tensors(world_size: int, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    assert all(ranks(world_size).run(shards_and_tensors, tmp_path))


@SHARDED
def test_bytes_beside_shards(
    world_size: int, tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    expected = ({"lr": 0.5, "names": ["a"]}, True)
    assert ranks(world_size).run(bytes_and_shards, tmp_path) == [expected] * world_size


def test_a_target_without_memory(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    assert all(ranks(2).run(meta_target, tmp_path))
