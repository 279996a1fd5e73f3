"""Parts of one payload arrive right in any order and target: a planner cuts its read items."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan

from dcp_gds import GDSReader
from dcp_gds.checkpoint.saveitem import form_of
from dcp_gds.format.envelope import EnvelopeCache
from dcp_gds.format.extent import round_down, round_up
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_load, save


class SplitPlanner(DefaultLoadPlanner):
    """Reads the quarters of a one-dimensional tensor as items of their own, in a given order."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self._order = order

    def create_local_plan(self) -> LoadPlan:
        plan = super().create_local_plan()
        (item,) = plan.items
        quarter = item.lengths[0] // 4
        items = [
            dataclasses.replace(
                item,
                storage_offsets=torch.Size([part * quarter]),
                dest_offsets=torch.Size([part * quarter]),
                lengths=torch.Size([quarter]),
            )
            for part in self._order
        ]
        return LoadPlan(items)


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as torchao's are: it keeps another one."""

    kept: torch.Tensor

    @staticmethod
    def __new__(cls: Any, kept: torch.Tensor) -> Any:
        base: Any = torch.Tensor
        made = base._make_wrapper_subclass(cls, kept.size(), dtype=kept.dtype)
        made.kept = kept
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # narrower than what torch declares
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = [arg.kept if isinstance(arg, Wrapper) else arg for arg in args]
        result = func(*plain, **(kwargs or {}))
        return args[0] if func.__name__.startswith("copy_") else Wrapper(result)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("order", [(3, 0, 1, 2), (1, 0, 3, 2), (0, 1, 2, 3), (3, 2, 1, 0)])
@pytest.mark.parametrize("numel", [64, 8192, 400_000])
@pytest.mark.parametrize("saver", [OURS, STOCK], ids=lambda storage: storage.name)
def test_the_parts_arrive(
    saver: Storage, numel: int, order: tuple[int, ...], verify: bool, tmp_path: Path
) -> None:
    source = torch.arange(numel, dtype=torch.int32) + 1
    save({"x": source}, tmp_path, saver)
    target = torch.zeros_like(source)
    reader = GDSReader(tmp_path, verify=verify)
    dcp_load({"x": target}, storage_reader=reader, planner=SplitPlanner(order), no_dist=True)
    assert torch.equal(target, source)


@pytest.mark.parametrize("numel", [64, 400_000])
def test_a_target_without_memory_is_copied_to(numel: int, tmp_path: Path) -> None:
    source = torch.arange(numel, dtype=torch.int32)
    save({"x": source}, tmp_path)
    kept = torch.zeros_like(source)
    dcp_load({"x": Wrapper(kept)}, storage_reader=GDSReader(tmp_path), no_dist=True)
    assert torch.equal(kept, source)


class ColumnsPlanner(DefaultLoadPlanner):
    """Reads the first half of each row of a matrix."""

    def create_local_plan(self) -> LoadPlan:
        (item,) = super().create_local_plan().items
        rows, columns = item.lengths
        return LoadPlan([dataclasses.replace(item, lengths=torch.Size([rows, columns // 2]))])


def test_half_the_columns_of_a_stock_matrix_cost_each_block_once(tmp_path: Path) -> None:
    """The archive's one checksum is of no use to a part, and must not make the reading slower."""
    matrix = torch.arange(6000 * 130, dtype=torch.int32).view(6000, 130)
    save({"w": matrix}, tmp_path, STOCK)
    target = torch.zeros_like(matrix)
    with GDSReader(tmp_path, engine="direct") as reader:
        dcp_load({"w": target}, storage_reader=reader, planner=ColumnsPlanner())
        report = reader.report
        (info,) = reader.read_metadata().storage_data.values()
    assert torch.equal(target[:, :65], matrix[:, :65])
    assert not target[:, 65:].any()
    assert report is not None
    assert (report.verified_bytes, report.unverified_bytes) == (0, matrix.nbytes // 2)
    # From the first payload byte, behind the head, to the end of the last row's first half.
    start = info.offset + len(EnvelopeCache(checksum=True).get(form_of(matrix)).head)
    end = start + matrix.nbytes - matrix.nbytes // 6000 // 2
    blocks = round_up(end, alignment=4096) - round_down(start, alignment=4096)
    assert report.bytes_by_engine["direct"] == blocks
