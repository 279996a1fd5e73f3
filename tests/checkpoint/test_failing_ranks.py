"""A rank that fails in any step of a save fails it on every rank; the old checkpoint stays.

Method: a writer that raises in one method on one of two ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from dcp_gds import GDSReader, GDSWriter
from tests.checkpoint.refusal import unwrapped
from tests.checkpoint.storage import dcp_load, dcp_save
from tests.ranks import Ranks


class FailingWriter(GDSWriter):
    """Fails in one step on one rank."""

    def __init__(self, path: Path, step: str, rank: int) -> None:
        super().__init__(path, overwrite=True)
        if dist.get_rank() == rank:
            setattr(self, step, self._fail)

    @staticmethod
    def _fail(*args: object, **kwargs: object) -> None:
        raise ValueError("by design")


def save_old(path: Path) -> None:
    dcp_save({f"w{dist.get_rank()}": torch.ones(9)}, storage_writer=GDSWriter(path))


def failing(path: Path, step: str, rank: int) -> tuple[list[int], str, bool]:
    """Which ranks failed, as this rank is told, and whether the old checkpoint still loads."""
    own = f"w{dist.get_rank()}"
    failed, told = [], ""
    try:
        dcp_save({own: torch.zeros(9)}, storage_writer=FailingWriter(path, step, rank))
    except CheckpointException as error:
        failed, told = sorted(error.failures), str(unwrapped(error))
    target = {own: torch.zeros(9)}
    dcp_load(target, storage_reader=GDSReader(path))
    return failed, told, bool(target[own].eq(1).all())


@pytest.mark.parametrize("rank", [0, 1], ids=lambda rank: f"rank-{rank}")
@pytest.mark.parametrize("step", ["set_up_storage_writer", "prepare_local_plan", "write_data"])
def test_a_rank_that_fails(
    step: str, rank: int, tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    ranks(2).run(save_old, tmp_path)
    assert ranks(2).run(failing, tmp_path, step, rank) == [([rank], "by design", True)] * 2


@pytest.mark.parametrize("step", ["prepare_global_plan", "finish"])
def test_a_coordinator_that_fails(step: str, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(save_old, tmp_path)
    assert ranks(2).run(failing, tmp_path, step, 0) == [([0], "by design", True)] * 2
