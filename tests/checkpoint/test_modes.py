"""The ways to call DCP: without ranks, without collectives, with a checkpoint_id, on a subgroup.

Method: one process and two gloo ranks save and load through each of them, by ours and by stock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.checkpoint.shardfiles import metadata_of
from tests.checkpoint.storage import OURS, PAIRS, Storage, dcp_load, dcp_save, load, pair_name, save
from tests.ranks import Ranks

both_ways = pytest.mark.parametrize("pair", PAIRS, ids=pair_name)


def tensor_of_rank() -> torch.Tensor:
    return torch.full((1000,), float(dist.get_rank()))


def sharded(value: float) -> DTensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(torch.full((5, 3), value), mesh, [Shard(0)], src_data_rank=None)


def each_rank_alone(path: Path, saver: Storage, loader: Storage) -> bool:
    """`no_dist` inside a process group: every rank has a directory of its own."""
    own = path / f"rank{dist.get_rank()}"
    save({"x": tensor_of_rank()}, own, saver)
    target = torch.zeros(1000)
    load({"x": target}, own, loader)
    return torch.equal(target, tensor_of_rank())


def without_collectives(path: Path, saver: Storage, loader: Storage) -> bool:
    """Each rank writes and reads a metadata file of its own in one directory."""
    writer = saver.writer(path)
    dcp_save({"x": tensor_of_rank(), "y": 1}, storage_writer=writer, use_collectives=False)
    target = {"x": torch.zeros(1000), "y": 0}
    dcp_load(target, storage_reader=loader.reader(path))
    return bool(torch.equal(target["x"], tensor_of_rank())) and target["y"] == 1  # type: ignore[arg-type]  # a mixed dict


def without_collectives_again(path: Path) -> bool:
    """The second save without collectives replaces the first."""
    for number in (1.0, 2.0):
        writer = OURS.writer(path, overwrite=True)
        state = {"x": tensor_of_rank() + number}
        dcp_save(state, storage_writer=writer, use_collectives=False)
        dist.barrier()
    target = torch.zeros(1000)
    dcp_load({"x": target}, storage_reader=OURS.reader(path))
    return torch.equal(target, tensor_of_rank() + 2.0)


def on_a_group_of_one(path: Path, saver: Storage, loader: Storage) -> bool:
    """A process group of rank 1 only; the coordinator is that rank."""
    group = dist.new_group([1])
    same = True
    if dist.get_rank() == 1:
        target = torch.zeros(1000)
        state = {"x": tensor_of_rank()}
        dcp_save(state, storage_writer=saver.writer(path), process_group=group)
        dcp_load({"x": target}, storage_reader=loader.reader(path), process_group=group)
        same = torch.equal(target, tensor_of_rank())
    return same


def deduplicated(path: Path, lowest: bool) -> bool:
    """Save replicated tensors once, balanced over the ranks or on the lowest one."""
    state = {f"w{n}": torch.full((100,), float(n)) for n in range(6)} | {"s": sharded(3.0)}
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=lowest)
    dcp_save(dict(state), storage_writer=OURS.writer(path), planner=planner)
    target = {f"w{n}": torch.zeros(100) for n in range(6)} | {"s": sharded(0.0)}
    dcp_load(dict(target), storage_reader=OURS.reader(path))
    return all(torch.equal(target[name], state[name]) for name in state)


@both_ways
def test_each_rank_alone(
    pair: tuple[Storage, Storage], tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    assert ranks(2).run(each_rank_alone, tmp_path, *pair) == [True, True]


@both_ways
def test_without_collectives(
    pair: tuple[Storage, Storage], tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    assert ranks(2).run(without_collectives, tmp_path, *pair) == [True, True]
    names = {file.name for file in tmp_path.glob("*.metadata")} | {
        file.name for file in tmp_path.glob(".metadata")
    }
    assert names == {"__0.metadata", "__1.metadata"}


def test_without_collectives_again(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(without_collectives_again, tmp_path) == [True, True]
    assert len(list(tmp_path.glob("*.distcp"))) == 2


@both_ways
def test_on_a_group_of_one(
    pair: tuple[Storage, Storage], tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    assert ranks(2).run(on_a_group_of_one, tmp_path, *pair) == [True, True]


@pytest.mark.parametrize("lowest", [False, True], ids=["balanced", "lowest-rank"])
def test_deduplicated(lowest: bool, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(deduplicated, tmp_path, lowest) == [True, True]
    savers = {
        info.relative_path.split("_")[2]
        for index, info in metadata_of(tmp_path).storage_data.items()
        if index.fqn != "s"
    }
    assert savers == ({"0"} if lowest else {"0", "1"})


@pytest.mark.parametrize("kind", [str, Path], ids=lambda kind: kind.__name__)
def test_checkpoint_id_moves_writer_and_reader(
    kind: type[str] | type[Path], tmp_path: Path
) -> None:
    writer, reader = OURS.writer(tmp_path / "unused"), OURS.reader(tmp_path / "unused")
    for number in range(3):
        state = {"x": torch.full((10,), float(number))}
        path = kind(tmp_path / f"step{number}")
        dcp_save(state, checkpoint_id=path, storage_writer=writer, no_dist=True)
    for number in (2, 0, 1):
        target = {"x": torch.zeros(10)}
        path = kind(tmp_path / f"step{number}")
        dcp_load(target, checkpoint_id=path, storage_reader=reader, no_dist=True)
        assert target["x"].eq(number).all()
    assert not (tmp_path / "unused").exists()


def test_checkpoint_id_is_the_path(tmp_path: Path) -> None:
    writer, reader = OURS.writer(tmp_path), OURS.reader(tmp_path)
    assert Path(writer.checkpoint_id) == Path(reader.checkpoint_id) == tmp_path  # type: ignore[attr-defined]  # not in DCP's base classes
    metadata = save({"x": torch.ones(3)}, tmp_path)
    assert metadata.storage_meta is not None
    assert Path(str(metadata.storage_meta.checkpoint_id)) == tmp_path


@pytest.mark.parametrize("kind", [str, Path], ids=lambda kind: kind.__name__)
def test_nested_directories_are_made(kind: type[str] | type[Path], tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "ä"
    dcp_save({"x": torch.ones(3)}, storage_writer=OURS.writer(kind(path)), no_dist=True)
    target = torch.zeros(3)
    dcp_load({"x": target}, storage_reader=OURS.reader(kind(path)), no_dist=True)
    assert target.eq(1).all()
