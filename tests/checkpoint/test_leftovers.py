"""The next save removes what killed and failed saves have left, and nothing that may be needed.

Method: files of such saves are put into the directory of real saves; another save that commits at
the same time is a lock on the directory, or a step between two calls of DCP's.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import (
    CheckpointExistsError,
    CorruptCheckpointError,
    TransferError,
    UnsupportedError,
)
from tests.checkpoint.refusal import refused, snapshot
from tests.checkpoint.shardfiles import metadata_of
from tests.checkpoint.storage import STOCK, dcp_load, dcp_save
from tests.checkpoint.storage import save as save_with
from tests.ranks import Ranks

TOKEN = "0123456789abcdef" * 2
LEFT = {f"__0_0-{TOKEN}.distcp", f"__1_0-{TOKEN}.distcp", f".metadata-{TOKEN}.tmp"}
THEIRS = {"__0_0.distcp", "notes.txt", f"__0_0-{TOKEN[1:]}.distcp"}


class Meanwhile(GDSWriter):
    """Does something between writing the data and committing them."""

    def __init__(self, path: Path, act: Callable[[], object], **options: Any) -> None:
        super().__init__(path, **options)
        self._act = act

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self._act()
        super().finish(metadata, results)


def save(writer: GDSWriter, value: float, *, collectives: bool = True) -> None:
    state = {"x": torch.full((9,), float(value))}
    dcp_save(state, storage_writer=writer, no_dist=True, use_collectives=collectives)


def loaded(path: Path) -> float:
    target = {"x": torch.zeros(9)}
    dcp_load(target, storage_reader=GDSReader(path), no_dist=True)
    return float(target["x"][0])


def put(path: Path, names: set[str]) -> None:
    for name in names:
        (path / name).write_bytes(b"content")


def removed(writer: GDSWriter) -> tuple[int, int]:
    assert writer.report is not None
    return writer.report.files_removed, writer.report.files_kept


def names_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def checkpoint_files(path: Path) -> set[str]:
    named = {info.relative_path for info in metadata_of(path).storage_data.values()}
    return named | {".metadata"}


@pytest.mark.parametrize("overwrite", [False, True], ids=["first", "overwrite"])
def test_leftovers_go(tmp_path: Path, overwrite: bool) -> None:
    if overwrite:
        save(GDSWriter(tmp_path), 1)
    put(tmp_path, LEFT | THEIRS)
    writer = GDSWriter(tmp_path, overwrite=overwrite)
    save(writer, 2)
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | THEIRS
    assert removed(writer) == (len(LEFT) + overwrite, 0)
    assert loaded(tmp_path) == 2


def test_a_stock_checkpoint_beside_them_goes_only_where_it_is_replaced(tmp_path: Path) -> None:
    save_with({"x": torch.ones(9)}, tmp_path, STOCK)
    put(tmp_path, LEFT | {"__1_0.distcp"})
    writer = GDSWriter(tmp_path, overwrite=True)
    save(writer, 2)
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | {"__1_0.distcp"}
    assert removed(writer) == (len(LEFT) + 1, 0)


def test_what_other_metadata_name_stays(tmp_path: Path) -> None:
    save(GDSWriter(tmp_path), 1, collectives=False)
    before = names_in(tmp_path)
    put(tmp_path, LEFT)
    save(GDSWriter(tmp_path, overwrite=True), 2)
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | before
    assert "__0.metadata" in before
    assert loaded(tmp_path) == 2


def test_where_some_metadata_cannot_be_read_all_stay(tmp_path: Path) -> None:
    put(tmp_path, LEFT | {"__7.metadata"})
    writer = GDSWriter(tmp_path, overwrite=True)
    save(writer, 1)
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | LEFT | {"__7.metadata"}
    assert removed(writer) == (0, 0)


def test_without_collectives_only_those_of_the_rank_go(tmp_path: Path) -> None:
    put(tmp_path, LEFT | {f"__0.metadata-{TOKEN}.tmp"})
    writer = GDSWriter(tmp_path)
    save(writer, 1, collectives=False)
    stay = {f"__1_0-{TOKEN}.distcp", f".metadata-{TOKEN}.tmp"}
    assert stay < names_in(tmp_path)
    assert removed(writer) == (2, 0)
    assert len(names_in(tmp_path)) == 4


def test_where_there_are_no_locks_only_the_replaced_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    save(GDSWriter(tmp_path), 1)
    put(tmp_path, LEFT)
    writer = GDSWriter(tmp_path, overwrite=True)
    save(writer, 2)
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | LEFT
    assert removed(writer) == (1, 0)


def test_another_commit_at_the_same_time_is_refused(tmp_path: Path) -> None:
    save(GDSWriter(tmp_path), 1)
    before = snapshot(tmp_path)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with refused(TransferError, "another save is committing", tmp_path) as refusal:
        save(GDSWriter(tmp_path, overwrite=True), 2)
    os.close(fd)
    assert isinstance(refusal.error, OSError)
    assert refusal.error.errno == errno.EWOULDBLOCK
    assert before.items() <= snapshot(tmp_path).items()
    assert loaded(tmp_path) == 1
    save(GDSWriter(tmp_path, overwrite=True), 3)
    assert names_in(tmp_path) == checkpoint_files(tmp_path)
    assert loaded(tmp_path) == 3


@pytest.mark.parametrize("overwrite", [False, True], ids=["first", "overwrite"])
def test_two_saves_into_one_directory_end_in_one_that_is_whole(
    tmp_path: Path, overwrite: bool
) -> None:
    def save_first() -> None:
        save(GDSWriter(tmp_path, overwrite=overwrite), 1)

    # The first to commit takes the files of the other, which had not committed, for leftovers.
    late = Meanwhile(tmp_path, save_first, overwrite=overwrite)
    with refused(CorruptCheckpointError if overwrite else CheckpointExistsError, tmp_path):
        save(late, 2)
    assert names_in(tmp_path) == checkpoint_files(tmp_path)
    assert loaded(tmp_path) == 1


def test_a_file_that_cannot_be_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, LEFT)
    stuck = tmp_path / f"__1_0-{TOKEN}.distcp"
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    writer = GDSWriter(tmp_path)
    save(writer, 1)
    assert removed(writer) == (len(LEFT) - 1, 1)
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | {stuck.name}


def test_a_directory_that_cannot_be_listed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, LEFT)

    def refuse(path: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    writer = Meanwhile(tmp_path, lambda: monkeypatch.setattr(os, "scandir", refuse), overwrite=True)
    save(writer, 1)
    monkeypatch.undo()
    assert names_in(tmp_path) == checkpoint_files(tmp_path) | LEFT


class ForeignResults(GDSWriter):
    """Hands results of its own making to the coordinator."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        (result,) = results[0]
        plain = WriteResult(result.index, result.size_in_bytes, result.storage_data)
        super().finish(metadata, [[plain]])


def test_results_of_another_writer_are_refused(tmp_path: Path) -> None:
    with refused(UnsupportedError, "x: ", "every rank has to save with a GDSWriter"):
        save(ForeignResults(tmp_path), 1)
    assert not (tmp_path / ".metadata").exists()


class KeepingDuplicates(DefaultSavePlanner):
    """Lets every rank write what all of them hold."""

    def create_global_plan(self, all_plans: list[Any]) -> tuple[list[Any], Metadata]:
        _, metadata = super().create_global_plan(all_plans)
        return all_plans, metadata


def save_duplicates(path: Path) -> None:
    planner = KeepingDuplicates()
    dcp_save({"x": torch.full((9,), 5.0)}, storage_writer=GDSWriter(path), planner=planner)


def test_duplicates_are_a_checkpoint(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(save_duplicates, tmp_path)
    assert len(list(tmp_path.glob("*.distcp"))) == 2
    assert loaded(tmp_path) == 5


def save_alone(path: Path, times: int) -> list[float]:
    """Every rank commits its own metadata again and again, while the others do."""
    found = []
    own = f"w{dist.get_rank()}"
    for step in range(times):
        state = {own: torch.full((9,), float(step))}
        writer = GDSWriter(path, overwrite=True)
        dcp_save(state, storage_writer=writer, use_collectives=False)
        target = {own: torch.zeros(9)}
        dcp_load(target, storage_reader=GDSReader(path))
        found.append(float(target[own][0]))
    return found


def test_ranks_that_commit_by_themselves_wait_for_each_other(
    tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    assert ranks(4).run(save_alone, tmp_path, 5) == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 4
    assert len(names_in(tmp_path)) == 8
