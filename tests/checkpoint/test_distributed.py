"""DTensors of every placement and FSDP2 with its optimizer come back on the ranks that saved them.

Method: four gloo ranks, kept for all cases, save and load one state by ours and by DCP's own
storage; each rank compares the bytes of its own shard.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.storage import OURS, PAIRS, STOCK, Storage, dcp_load, dcp_save, pair_name
from tests.ranks import Ranks

WORLD_SIZE = 4

# Mesh shape, placements, shape of the whole tensor, dtype.
Case = tuple[tuple[int, ...], tuple[Placement, ...], tuple[int, ...], torch.dtype]
CASES: dict[str, Case] = {
    "rows": ((4,), (Shard(0),), (8, 3), torch.float32),
    "rows-6-on-4": ((4,), (Shard(0),), (6, 3), torch.float32),
    "rows-5-on-4": ((4,), (Shard(0),), (5, 1000), torch.bfloat16),
    "rows-2-on-4": ((4,), (Shard(0),), (2, 5), torch.float64),
    "row-1-on-4": ((4,), (Shard(0),), (1,), torch.int64),
    "rows-0-on-4": ((4,), (Shard(0),), (0, 5), torch.float32),
    "columns-10-on-4": ((4,), (Shard(1),), (3, 10), torch.float32),
    "middle-5-on-4": ((4,), (Shard(1),), (3, 5, 4), torch.float8_e4m3fn),
    "replicated": ((4,), (Replicate(),), (7, 3), torch.float32),
    "replicated-scalar": ((4,), (Replicate(),), (), torch.float32),
    "rows-columns": ((2, 2), (Shard(0), Shard(1)), (5, 7), torch.float32),
    "rows-rows": ((2, 2), (Shard(0), Shard(0)), (5, 3), torch.complex64),
    "rows-rows-empty": ((2, 2), (Shard(0), Shard(0)), (3, 3), torch.float32),
    "columns-rows-empty": ((2, 2), (Shard(1), Shard(0)), (1, 3), torch.float32),
    "replicated-rows": ((2, 2), (Replicate(), Shard(0)), (6, 3), torch.float32),
    "rows-replicated": ((2, 2), (Shard(0), Replicate()), (3, 3), torch.bool),
    "replicated-replicated": ((2, 2), (Replicate(), Replicate()), (6, 3), torch.float32),
}


def build(case: Case, tensor: torch.Tensor) -> DTensor:
    """Distribute `tensor` without communication: every rank holds the whole of it already."""
    mesh_shape, placements, _, _ = case
    mesh = init_device_mesh("cpu", mesh_shape)
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def round_trip(name: str, path: Path, saver: Storage, loader: Storage) -> bool:
    """Save and load one case; whether this rank's shard came back."""
    case = CASES[name]
    _, _, shape, dtype = case
    source = build(case, dense_tensor(shape, dtype))
    target = build(case, filled_tensor(shape, dtype))
    dcp_save({"x": source}, storage_writer=saver.writer(path))
    dcp_load({"x": target}, storage_reader=loader.reader(path))
    return raw(target.to_local()) == raw(source.to_local())


def submesh_round_trip(path: Path, saver: Storage, loader: Storage) -> bool:
    """As above on a mesh of ranks 1 and 3; the other two ranks save and load nothing."""
    mesh = DeviceMesh("cpu", [1, 3])
    whole = dense_tensor((5, 3), torch.float32)
    source = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
    target = distribute_tensor(torch.zeros(5, 3), mesh, [Shard(0)], src_data_rank=None)
    dcp_save({"x": source}, storage_writer=saver.writer(path))
    dcp_load({"x": target}, storage_reader=loader.reader(path))
    return raw(target.to_local()) == raw(source.to_local())


def trained(mesh_shape: tuple[int, ...], *, seed: int, steps: int) -> dict[str, Any]:
    """State of a small FSDP2 model and its AdamW; layer sizes leave ranks with empty shards."""
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 7), torch.nn.LayerNorm(7), torch.nn.ReLU(), torch.nn.Linear(7, 3)
    )
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
    for _ in range(steps):
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": steps}
    return {"state": state, "model": model, "optimizer": optimizer}


def shards(state: object) -> object:
    """The state with every tensor replaced by the bytes of what this rank holds of it."""
    if isinstance(state, dict):
        return {key: shards(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [shards(value) for value in state]
    if isinstance(state, DTensor):
        return raw(state.to_local())
    return raw(state) if isinstance(state, torch.Tensor) else state


def fsdp_round_trip(mesh_shape: tuple[int, ...], path: Path) -> None:
    """Train, save by ours, load by stock into a fresh model, save by stock, load by ours."""
    expected = copy.deepcopy(shards(trained(mesh_shape, seed=0, steps=3)["state"]))
    saved = trained(mesh_shape, seed=0, steps=3)
    dcp_save(saved["state"], storage_writer=OURS.writer(path / "ours"))
    by_stock = trained(mesh_shape, seed=1 + dist.get_rank(), steps=0)
    dcp_load(by_stock["state"], storage_reader=STOCK.reader(path / "ours"))
    assert shards(by_stock["state"]) == expected
    dcp_save(by_stock["state"], storage_writer=STOCK.writer(path / "stock"))
    by_ours = trained(mesh_shape, seed=9 + dist.get_rank(), steps=0)
    dcp_load(by_ours["state"], storage_reader=OURS.reader(path / "stock"))
    assert shards(by_ours["state"]) == expected
    set_state_dict(
        by_ours["model"],
        by_ours["optimizer"],
        model_state_dict=by_ours["state"]["model"],
        optim_state_dict=by_ours["state"]["optimizer"],
    )
    again = get_state_dict(by_ours["model"], by_ours["optimizer"])
    assert [shards(part) for part in again] == [
        shards(by_ours["state"][part]) for part in ("model", "optimizer")
    ]


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
@pytest.mark.parametrize("case", CASES)
def test_dtensor(
    case: str, pair: tuple[Storage, Storage], tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    assert all(ranks(WORLD_SIZE).run(round_trip, case, tmp_path, *pair))


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_dtensor_on_some_ranks(
    pair: tuple[Storage, Storage], tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    assert all(ranks(WORLD_SIZE).run(submesh_round_trip, tmp_path, *pair))


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)], ids=["fsdp", "hsdp"])
def test_fsdp2_with_its_optimizer(
    mesh_shape: tuple[int, ...], tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    ranks(WORLD_SIZE).run(fsdp_round_trip, mesh_shape, tmp_path)
