"""A save replaces only what it was asked to, and what it replaces is gone: on real directories."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import (
    CheckpointExistsError,
    ConfigError,
    CorruptCheckpointError,
    TransferError,
)
from tests.checkpoint.refusal import refused, snapshot
from tests.checkpoint.storage import dcp_load, dcp_save
from tests.ranks import Ranks


def save(path: Path, value: float, *, collectives: bool = True, **options: Any) -> GDSWriter:
    writer = GDSWriter(path, **options)
    dcp_save(
        {"x": torch.full((9,), float(value))},
        storage_writer=writer,
        no_dist=True,
        use_collectives=collectives,
    )
    return writer


def loaded(path: Path) -> float:
    target = {"x": torch.zeros(9)}
    dcp_load(target, storage_reader=GDSReader(path), no_dist=True)
    return float(target["x"][0])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_nothing_is_replaced_unasked(tmp_path: Path, first: bool, second: bool) -> None:
    save(tmp_path, 1, collectives=first)
    before = snapshot(tmp_path)
    with refused(CheckpointExistsError, tmp_path):
        save(tmp_path, 2, collectives=second)
    assert snapshot(tmp_path) == before
    assert loaded(tmp_path) == 1


def test_a_save_that_no_load_would_find_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with refused(ConfigError, tmp_path):
        save(tmp_path, 2, collectives=False, overwrite=True)
    assert loaded(tmp_path) == 1


class Notes:
    """What a custom planner may put into the metadata; the allow-list refuses it."""


class NotingPlanner(DefaultSavePlanner):
    """Leaves notes in the metadata."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        return plans, dataclasses.replace(metadata, planner_data=Notes())


def test_the_old_files_go_whatever_the_planner_put_into_the_metadata(tmp_path: Path) -> None:
    for value in range(3):
        dcp_save(
            {"x": torch.full((9,), float(value))},
            storage_writer=GDSWriter(tmp_path, overwrite=True),
            planner=NotingPlanner(),
            no_dist=True,
        )
        assert len(list(tmp_path.glob("*.distcp"))) == 1


def test_a_failed_save_leaves_no_report_of_the_one_before(tmp_path: Path) -> None:
    writer = save(tmp_path / "first", 1)
    assert writer.report is not None
    (tmp_path / "file").touch()
    with refused(TransferError, "file"):
        dcp_save(
            {"x": torch.ones(9)},
            storage_writer=writer,
            checkpoint_id=tmp_path / "file",
            no_dist=True,
        )
    assert writer.report is None


def test_what_on_commit_raises_does_not_undo_the_commit(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise RuntimeError(f"no link to {path}")

    with pytest.warns(UserWarning, match=r"is committed, but on_commit raised RuntimeError"):
        writer = save(tmp_path, 1, on_commit=fail)
    assert writer.report is not None
    assert writer.report.committed
    assert loaded(tmp_path) == 1


def test_a_shard_file_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    save(tmp_path, 1, collectives=False)
    (shard_file,) = tmp_path.glob("*.distcp")
    shard_file.unlink()
    with refused(CorruptCheckpointError, "is not there", shard_file):
        loaded(tmp_path)


def save_one_each(path: Path) -> None:
    """Save a tensor of this rank's own, so that there are as many shard files as ranks."""
    dcp_save({f"x{dist.get_rank()}": torch.ones(5000)}, storage_writer=GDSWriter(path))


def test_a_checkpoint_that_is_overwritten_between_two_files(
    tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    """When the first one has been read, the second one, which was there, is gone."""
    ranks(2).run(save_one_each, tmp_path)

    def overwrite(done: int, total: int) -> None:
        save(tmp_path, 2, overwrite=True)

    target = {"x0": torch.zeros(5000), "x1": torch.zeros(5000)}
    with refused(CorruptCheckpointError, "__1_0", "overwritten while", "load again"):
        dcp_load(target, storage_reader=GDSReader(tmp_path, progress=overwrite), no_dist=True)
    assert loaded(tmp_path) == 2


def test_a_checkpoint_that_is_overwritten_before_its_first_file_is_opened(tmp_path: Path) -> None:
    save(tmp_path, 1)
    reader = GDSReader(tmp_path)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    planner = DefaultLoadPlanner()
    planner.set_up_planner({"x": torch.zeros(9)}, metadata, is_coordinator=True)
    save(tmp_path, 2, overwrite=True)
    with refused(CorruptCheckpointError, "overwritten while", "load again"):
        reader.read_data(planner.create_local_plan(), planner)
