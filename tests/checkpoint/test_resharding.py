"""A checkpoint of N ranks loads on M, whoever saves and whoever loads.

Method: groups of 1, 2 and 4 gloo ranks save and load the same whole tensors, cut anew for each
group; each rank compares the bytes of its shards with those of the whole tensor's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.storage import PAIRS, Storage, dcp_load, dcp_save, pair_name
from tests.ranks import Ranks

SIZES = (1, 2, 4)

# Whole shape, dtype, placements when saving and when loading, on a one-dimensional mesh.
TENSORS: dict[str, tuple[tuple[int, ...], torch.dtype, Placement, Placement]] = {
    "rows": ((10, 7), torch.float32, Shard(0), Shard(0)),
    "rows-6": ((6, 3), torch.bfloat16, Shard(0), Shard(0)),
    "rows-1": ((1, 9), torch.float64, Shard(0), Shard(0)),
    "columns": ((5, 9), torch.float32, Shard(1), Shard(1)),
    "rows-to-columns": ((9, 11), torch.int32, Shard(0), Shard(1)),
    "columns-to-rows": ((9, 11), torch.complex64, Shard(1), Shard(0)),
    "middle-to-last": ((4, 6, 5), torch.float16, Shard(1), Shard(2)),
    "whole-to-rows": ((7, 5), torch.float32, Replicate(), Shard(0)),
    "rows-to-whole": ((7, 5), torch.float8_e5m2, Shard(0), Replicate()),
    "block-rows": ((3000, 17), torch.float32, Shard(0), Shard(1)),
}


def cut(whole: torch.Tensor, placement: Placement) -> DTensor:
    """This group's DTensor of a tensor that every rank holds."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(whole, mesh, [placement], src_data_rank=None)


def save_all(path: Path, saver: Storage) -> None:
    state = {
        name: cut(dense_tensor(shape, dtype), placement)
        for name, (shape, dtype, placement, _) in TENSORS.items()
    }
    dcp_save(state, storage_writer=saver.writer(path))


def load_all(path: Path, loader: Storage) -> list[str]:
    """Load everything; names of what differs on this rank."""
    state = {
        name: cut(filled_tensor(shape, dtype), placement)
        for name, (shape, dtype, _, placement) in TENSORS.items()
    }
    dcp_load(state, storage_reader=loader.reader(path))
    return [
        name
        for name, (shape, dtype, _, placement) in TENSORS.items()
        if raw(state[name].to_local()) != raw(cut(dense_tensor(shape, dtype), placement).to_local())
    ]


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
@pytest.mark.parametrize("after", SIZES, ids=lambda size: f"on-{size}")
@pytest.mark.parametrize("before", SIZES, ids=lambda size: f"from-{size}")
def test_every_split_to_every_other(
    before: int,
    after: int,
    pair: tuple[Storage, Storage],
    tmp_path: Path,
    ranks: Callable[[int], Ranks],
) -> None:
    saver, loader = pair
    ranks(before).run(save_all, tmp_path, saver)
    assert ranks(after).run(load_all, tmp_path, loader) == [[]] * after
