"""Saves that reuse DCP's cached plan each write their own files and load what they saved.

Method: three saves into one directory with `enable_plan_caching`, where the cached plan brings the
storage data of the first save back, in one process and on two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.checkpoint.shardfiles import metadata_of
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_load, dcp_save
from tests.ranks import Ranks

ROUNDS = 3


def forget_plans() -> None:
    """Empty DCP's caches, which live on the class and outlast a test."""
    for cache in (
        SavePlanner._cached_save_plan,
        SavePlanner._cached_final_save_plan,
        SavePlanner._cached_all_plans,
        SavePlanner._cached_global_plan,
        SavePlanner._cached_metadata,
    ):
        cache.clear()


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    forget_plans()
    yield
    forget_plans()


def state(value: float, *, keys: int = 2) -> dict[str, Any]:
    """A few tensors of one value and a number; DTensors when there are ranks to share them."""
    tensors: dict[str, Any] = {f"w{n}": torch.full((7, 5), value + n) for n in range(keys)}
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        tensors["sharded"] = distribute_tensor(torch.full((5, 3), value), mesh, [Shard(0)])
    return tensors | {"step": value}


def check_rounds(path: Path, reuse: bool, loader: Storage) -> list[set[str]]:
    """Save and load round after round; the shard files that each round's metadata names."""
    forget_plans()
    kept = OURS.writer(path, overwrite=True)
    files = []
    for number in range(ROUNDS):
        writer = kept if reuse else OURS.writer(path, overwrite=True)
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp_save(state(float(number)), storage_writer=writer, planner=planner)
        target = state(-1.0)
        dcp_load(target, storage_reader=loader.reader(path))
        for name, value in state(float(number)).items():
            loaded = target[name]
            assert torch.equal(loaded, value) if name != "step" else loaded == value, name
        named = metadata_of(path).storage_data.values()
        files.append({info.relative_path for info in named})
    return files


@pytest.mark.parametrize("loader", [OURS, STOCK], ids=lambda storage: storage.name)
@pytest.mark.parametrize("reuse", [False, True], ids=["new-writer", "same-writer"])
def test_in_one_process(reuse: bool, loader: Storage, tmp_path: Path) -> None:
    files = check_rounds(tmp_path, reuse, loader)
    assert not set.intersection(*files)
    # What the older saves wrote is gone; what the last one names is all there is.
    assert {file.name for file in tmp_path.glob("*.distcp")} == files[-1]


@pytest.mark.parametrize("reuse", [False, True], ids=["new-writer", "same-writer"])
def test_on_two_ranks(reuse: bool, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    files = ranks(2).run(check_rounds, tmp_path, reuse, OURS)[0]
    assert not set.intersection(*files)
    assert {file.name for file in tmp_path.glob("*.distcp")} == files[-1]


def test_a_changed_state_makes_a_new_plan(tmp_path: Path) -> None:
    for keys in (2, 2, 3, 1):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        saved = state(float(keys), keys=keys)
        writer = OURS.writer(tmp_path, overwrite=True)
        dcp_save(saved, storage_writer=writer, planner=planner)
        target = state(-1.0, keys=keys)
        dcp_load(target, storage_reader=OURS.reader(tmp_path))
        assert all(torch.equal(target[f"w{n}"], saved[f"w{n}"]) for n in range(keys))
