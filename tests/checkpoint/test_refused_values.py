"""What DCP would save wrongly, or not at all, is refused by name, and nothing is left behind.

Method: quantized, sparse, meta and fake tensors and an unknown subclass in one process, on one of
two ranks, and through `async_save`; a checkpoint that is there stays as it was.
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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import UnsupportedError
from tests.checkpoint.rawbytes import raw
from tests.checkpoint.refusal import refused, snapshot, unwrapped
from tests.checkpoint.storage import dcp_load, dcp_save, load, save
from tests.ranks import Ranks

LIMIT_S = 60.0


class Scaled(torch.Tensor):
    """A tensor subclass of some framework: its bytes alone do not say what it is."""


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(3)


VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "qint8": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "quint8": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 3, torch.quint8),
    "qint32": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint32),
    "per-channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
    ),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse-csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "fake": fake,
    "subclass": lambda: torch.ones(3).as_subclass(Scaled),
}


def bad_value(kind: str) -> torch.Tensor:
    """A refused value; torch's own warnings about its kind are not the subject here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return VALUES[kind]()


def save_with_one_bad_rank(path: Path, kind: str) -> tuple[str, int]:
    """Rank 1 alone has a value that is refused; what every rank is told."""
    state: dict[str, Any] = {"good": torch.ones(1000)}
    if dist.get_rank() == 1:
        state["bad.key"] = bad_value(kind)
    try:
        dcp_save(state, storage_writer=GDSWriter(path))
    except CheckpointException as error:
        (rank,) = error.failures
        return str(unwrapped(error)), rank
    return "", -1


def async_with_one_bad_rank(path: Path, kind: str) -> str:
    """As above through `async_save`: the failure comes by the future, and no rank hangs."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, Any] = {"good": distribute_tensor(torch.ones(6), mesh, [Shard(0)])}
    if dist.get_rank() == 1:
        state["bad.key"] = bad_value(kind)
    group = dist.new_group(backend="gloo")
    with GDSWriter(path) as writer:
        future = async_save(state, storage_writer=writer, process_group=group)
        try:
            cast("Future[object]", future).result(LIMIT_S)
        except CheckpointException as error:
            return str(unwrapped(error))
    return ""


@pytest.mark.parametrize("kind", VALUES)
def test_refused_by_name(kind: str, tmp_path: Path) -> None:
    with refused(UnsupportedError, "bad.key"):
        save({"good": torch.ones(1000), "bad": {"key": bad_value(kind)}}, tmp_path)
    assert snapshot(tmp_path) == {}


@pytest.mark.parametrize("kind", VALUES)
def test_the_checkpoint_that_is_there_stays(kind: str, tmp_path: Path) -> None:
    save({"x": torch.ones(9)}, tmp_path)
    before = snapshot(tmp_path)
    with refused(UnsupportedError, "bad"):
        save({"x": torch.zeros(9), "bad": bad_value(kind)}, tmp_path, overwrite=True)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", ["qint8", "sparse", "subclass"])
def test_refused_on_one_rank(kind: str, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    told = ranks(2).run(save_with_one_bad_rank, tmp_path, kind)
    assert told[0] == told[1]
    text, rank = told[0]
    assert "bad.key" in text
    assert rank == 1
    assert not (tmp_path / ".metadata").exists()


@pytest.mark.parametrize("kind", ["qint8", "sparse", "meta"])
def test_refused_by_the_future(kind: str, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    told = ranks(2).run(async_with_one_bad_rank, tmp_path, kind)
    assert told[0] == told[1]
    assert "bad.key" in told[0]
    assert not (tmp_path / ".metadata").exists()


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer], ids=["parameter", "buffer"])
def test_the_known_kinds_of_tensor_are_not_refused(
    kind: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    save({"x": kind(torch.ones(3))}, tmp_path)
    target = torch.zeros(3)
    load({"x": target}, tmp_path)
    assert target.eq(1).all()


def test_a_target_of_an_unknown_kind(tmp_path: Path) -> None:
    """Bytes are not put into memory whose meaning is unknown."""
    save({"x": torch.ones(4)}, tmp_path)
    target = bad_value("qint8")
    before = raw(target.int_repr())
    with refused(Exception, "x"):
        dcp_load({"x": target}, storage_reader=GDSReader(tmp_path), no_dist=True)
    assert raw(target.int_repr()) == before


def test_a_target_whose_elements_overlap(tmp_path: Path) -> None:
    save({"x": torch.ones(3, 4)}, tmp_path)
    target = torch.zeros(4).expand(3, 4)
    with refused(Exception):
        load({"x": target}, tmp_path)
