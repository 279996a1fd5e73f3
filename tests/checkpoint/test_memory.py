"""Saving and loading need no more memory beyond the state than the staging limit and 64 MiB.

Method: processes with states of 1 to 4 GiB save and load them, watched through /proc; tensors that
move as they are, that must be packed, and that the planner makes; and a BytesIO of 600 MiB beside a
writer that writes nothing.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from dcp_gds import GDSReader, GDSWriter
from tests.checkpoint.outside import MIB, peak_of
from tests.checkpoint.planners import HalfPlanner, RawBytesLoadPlanner, RawBytesPlanner
from tests.checkpoint.rawbytes import dense_tensor
from tests.checkpoint.storage import STOCK, dcp_load, dcp_save, save

pytestmark = pytest.mark.slow

STAGING_MIB = 64
SLACK_MIB = 64
TENSOR_MIB = 64
# Where the pieces of a tensor that is not dense lie apart: every other row of this length.
ROW = 1 << 10

ENGINES = ["direct", "buffered"]


class NullWriter(StorageWriter):
    """Resolves every item, as a writer must, and writes nothing."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        for item in plan.items:
            planner.resolve_data(item)
        future: Future[list[WriteResult]] = Future()
        future.set_result([])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def dense_state(state_mib: int) -> dict[str, torch.Tensor]:
    """Tensors of their own memory, all of it touched."""
    count = state_mib // TENSOR_MIB
    return {f"w{n:02}": torch.full((TENSOR_MIB * MIB // 4,), float(n)) for n in range(count)}


def spread_state(state_mib: int) -> dict[str, torch.Tensor]:
    """Tensors that are every other row of their memory, which is twice as large."""
    rows = TENSOR_MIB * MIB // 4 // ROW
    count = state_mib // TENSOR_MIB
    return {f"w{n:02}": torch.full((2 * rows, ROW), float(n))[::2] for n in range(count)}


def saving(path: Path, kind: str, state_mib: int, engine: str) -> Iterator[None]:
    state = (spread_state if kind == "spread" else dense_state)(state_mib)
    planner = HalfPlanner() if kind == "half" else DefaultSavePlanner()
    yield
    with GDSWriter(path, engine=engine, staging_bytes_max=STAGING_MIB * MIB) as writer:
        dcp_save(dict(state), storage_writer=writer, planner=planner)


def loading(path: Path, kind: str, state_mib: int, engine: str) -> Iterator[None]:
    state = (spread_state if kind == "spread" else dense_state)(state_mib)
    yield
    with GDSReader(path, engine=engine, staging_bytes_max=STAGING_MIB * MIB) as reader:
        dcp_load(dict(state), storage_reader=reader)


def saving_bytes(path: Path | None, kind: str) -> Iterator[None]:
    """`packed` goes through the archive that DCP's planner makes, which takes several copies."""
    content = dense_tensor((600 * MIB,), torch.uint8).numpy().tobytes()
    value = io.BytesIO(content) if kind == "packed" else content
    planner = DefaultSavePlanner() if kind == "packed" else RawBytesPlanner()
    yield
    writer = NullWriter() if path is None else GDSWriter(path, staging_bytes_max=STAGING_MIB * MIB)
    dcp_save({"b": value}, storage_writer=writer, planner=planner)


def loading_bytes(path: Path, kind: str, stock: bool) -> Iterator[None]:
    planner = DefaultLoadPlanner() if kind == "packed" else RawBytesLoadPlanner()
    yield
    reader = STOCK.reader(path) if stock else GDSReader(path, staging_bytes_max=STAGING_MIB * MIB)
    dcp_load({"b": b""}, storage_reader=reader, planner=planner)


def saving_again(path: Path, times: int) -> Iterator[None]:
    state = dense_state(256)
    with GDSWriter(path, overwrite=True, staging_bytes_max=STAGING_MIB * MIB) as writer:
        dcp_save(dict(state), storage_writer=writer)
        yield
        for _ in range(times):
            dcp_save(dict(state), storage_writer=writer)


@pytest.mark.parametrize("engine", ENGINES)
def test_4_gib(engine: str, tmp_path: Path) -> None:
    limit = STAGING_MIB + SLACK_MIB
    assert peak_of(saving, tmp_path, "dense", 4096, engine).extra_mib <= limit
    assert peak_of(loading, tmp_path, "dense", 4096, engine).extra_mib <= limit


@pytest.mark.parametrize("kind", ["spread", "half"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_must_be_packed(engine: str, kind: str, tmp_path: Path) -> None:
    """The planner of `half` makes one tensor of 32 MiB at a time, which is not the writer's."""
    limit = STAGING_MIB + SLACK_MIB + (TENSOR_MIB // 2 if kind == "half" else 0)
    assert peak_of(saving, tmp_path, kind, 1024, engine).extra_mib <= limit
    if kind == "spread":
        assert peak_of(loading, tmp_path, kind, 1024, engine).extra_mib <= limit


def test_loading_what_stock_wrote(tmp_path: Path) -> None:
    save(dict(dense_state(1024)), tmp_path, STOCK)
    limit = STAGING_MIB + SLACK_MIB
    assert peak_of(loading, tmp_path, "dense", 1024, "direct").extra_mib <= limit


@pytest.mark.parametrize("kind", ["packed", "raw"])
def test_600_mib_of_bytes(kind: str, tmp_path: Path) -> None:
    null = peak_of(saving_bytes, None, kind)
    ours = peak_of(saving_bytes, tmp_path, kind)
    assert ours.extra_mib <= null.extra_mib + SLACK_MIB
    stock = peak_of(loading_bytes, tmp_path, kind, True)
    ours = peak_of(loading_bytes, tmp_path, kind, False)
    assert ours.extra_mib <= stock.extra_mib + SLACK_MIB


def test_many_saves_need_no_more_than_one(tmp_path: Path) -> None:
    """The second save of a writer finds what the first one made; ten more add nothing."""
    assert peak_of(saving_again, tmp_path, 10).extra_mib <= 8
