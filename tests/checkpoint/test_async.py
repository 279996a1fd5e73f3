"""`async_save` saves what the state was when it returned, reports failures, and leaves the trainer
its own process group.

Method: tensors and objects changed at once after the call, saves that must fail, and two ranks that
train on the default group while a save uses another one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.staging import AsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import CheckpointExistsError
from tests.checkpoint.rawbytes import dense_tensor, raw
from tests.checkpoint.refusal import refused, snapshot
from tests.checkpoint.samples import LAYOUTS
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_load, load, save
from tests.ranks import Ranks

MIB = 1 << 20
# A save here takes well under a second; only a hang takes this long.
LIMIT_S = 120.0


def finished(response: Future[Any] | AsyncSaveResponse) -> Metadata:
    """Wait for a save that `async_save` started, whatever it answered."""
    future = response if isinstance(response, Future) else response.upload_completion
    return cast(Metadata, future.result(LIMIT_S))


def test_the_writer_is_its_own_stager(tmp_path: Path) -> None:
    assert isinstance(GDSWriter(tmp_path), AsyncStager)


@pytest.mark.parametrize("loader", [OURS, STOCK], ids=lambda storage: storage.name)
def test_what_changes_later_is_not_seen(loader: Storage, tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "small": torch.full((9,), 1.0),
        "large": torch.full((8 * MIB,), 1.0),
        "scalar": torch.tensor(1.0),
        "view": torch.full((300, 4), 1.0)[:, 1],
        "nested": {"list": [torch.full((5,), 1.0), 1]},
        "numbers": {"epoch": 1},
    }
    tensors = [state["small"], state["large"], state["scalar"], state["view"]]
    with GDSWriter(tmp_path) as writer:
        response = async_save(state, storage_writer=writer)
        for tensor in [*tensors, state["nested"]["list"][0]]:
            tensor.fill_(2.0)
        state["nested"]["list"][1] = state["numbers"]["epoch"] = 2
        state["late"] = torch.ones(3)
        finished(response)
    target: dict[str, Any] = {
        "small": torch.zeros(9),
        "large": torch.zeros(8 * MIB),
        "scalar": torch.zeros(()),
        "view": torch.zeros(300),
        "nested": {"list": [torch.zeros(5), 0]},
        "numbers": {"epoch": 0},
    }
    load(target, tmp_path, loader)
    loaded = [target["small"], target["large"], target["scalar"], target["view"]]
    assert all(tensor.eq(1).all() for tensor in [*loaded, target["nested"]["list"][0]])
    assert (target["nested"]["list"][1], target["numbers"]["epoch"]) == (1, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, tmp_path: Path) -> None:
    source = LAYOUTS[layout]()
    expected = raw(source)
    with GDSWriter(tmp_path) as writer:
        finished(async_save({"x": source}, storage_writer=writer))
    target = torch.zeros(source.shape, dtype=source.dtype)
    load({"x": target}, tmp_path)
    assert raw(target) == expected


def test_one_writer_for_many_saves(tmp_path: Path) -> None:
    weight = torch.zeros(3 * MIB)
    committed: list[Path] = []
    with GDSWriter(tmp_path / "unused", on_commit=committed.append) as writer:
        for step in range(5):
            weight.fill_(step)
            path = tmp_path / f"step{step}"
            finished(async_save({"w": weight}, checkpoint_id=path, storage_writer=writer))
    assert committed == [tmp_path / f"step{step}" for step in range(5)]
    for step in range(5):
        load({"w": weight}, tmp_path / f"step{step}")
        assert weight.eq(step).all()


def test_overwritten_again_and_again(tmp_path: Path) -> None:
    weight = torch.zeros(MIB)
    with GDSWriter(tmp_path, overwrite=True) as writer:
        for step in range(4):
            weight.fill_(step)
            response = async_save({"w": weight}, storage_writer=writer)
            weight.fill_(-1)
            finished(response)
            load({"w": weight}, tmp_path)
            assert weight.eq(step).all()
    assert len(list(tmp_path.glob("*.distcp"))) == 1


def test_the_future_carries_the_failure(tmp_path: Path) -> None:
    save({"x": torch.ones(3)}, tmp_path)
    before = snapshot(tmp_path)
    with GDSWriter(tmp_path) as writer:
        response = async_save({"x": torch.zeros(3)}, storage_writer=writer)
        with refused(CheckpointExistsError, tmp_path):
            finished(response)
        assert snapshot(tmp_path) == before
        # The writer is good for another save.
        new = tmp_path / "new"
        finished(async_save({"x": torch.ones(3)}, checkpoint_id=new, storage_writer=writer))
    assert (tmp_path / "new" / ".metadata").exists()


def test_with_the_default_stager(tmp_path: Path) -> None:
    source = dense_tensor((1000, 33), torch.float32)
    expected = raw(source)
    stager = DefaultStager(StagingOptions(False, False, False, False))
    with GDSWriter(tmp_path) as writer:
        response = async_save({"x": source}, storage_writer=writer, async_stager=stager)
        source.zero_()
        finished(response)
    stager.close()
    target = torch.ones(1000, 33)
    load({"x": target}, tmp_path)
    assert raw(target) == expected


def train_while_saving(path: Path) -> list[float]:
    """Save on a group of its own while the default group is busy with the trainer's collectives."""
    group = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.zeros(3 * MIB, 2), mesh, [Shard(0)], src_data_rank=None)
    found = []
    with GDSWriter(path / "unused") as writer:
        response: Future[Any] | AsyncSaveResponse | None = None
        for step in range(6):
            if response is not None and step % 2 == 0:
                finished(response)
                response = None
            summed = torch.tensor(float(dist.get_rank()))
            dist.all_reduce(summed)
            weight.to_local().fill_(float(summed) + step)
            if response is None:
                response = async_save(
                    {"w": weight, "step": step},
                    checkpoint_id=path / f"step{step}",
                    storage_writer=writer,
                    process_group=group,
                )
        assert response is not None
        finished(response)
    for step in (0, 2, 4):
        target: dict[str, Any] = {"w": weight, "step": -1}
        dcp_load(target, storage_reader=GDSReader(path / f"step{step}"))
        assert target["step"] == step
        assert weight.to_local().eq(1.0 + step).all()
        found.append(float(weight.to_local().max()))
    return found


def test_on_a_group_of_its_own(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(train_while_saving, tmp_path) == [[1.0, 3.0, 5.0]] * 2


def fail_on_every_rank(path: Path) -> str:
    """A failure of one rank's save comes by the future of both."""
    group = dist.new_group(backend="gloo")
    own = path / "shared"
    if dist.get_rank() == 1:
        own = path / "file"  # a file where this rank's directory should be
    with GDSWriter(own) as writer:
        response = async_save({"x": torch.ones(9)}, storage_writer=writer, process_group=group)
        with refused(OSError, path / "file") as refusal:
            finished(response)
    return type(refusal.error).__name__


def test_every_rank_is_told(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    told = ranks(2).run(fail_on_every_rank, tmp_path)
    assert told[0] == told[1]
    assert snapshot(tmp_path) == {"file": b"precious"}
