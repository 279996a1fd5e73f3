"""A path that cannot be written or read is refused with the path, before anything is lost.

Method: real directories and files in the way of a save or a load, in one process and on two ranks;
what was there before is compared byte for byte afterwards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import (
    CheckpointExistsError,
    CorruptCheckpointError,
    DcpGdsError,
    NotCommittedError,
    TransferError,
)
from tests.checkpoint.refusal import refused, snapshot, unwrapped
from tests.checkpoint.restricted import restricted
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_load, dcp_save, load, save
from tests.checkpoint.test_conversion import empty_load
from tests.ranks import Ranks


def save_told(path: Path) -> str:
    """What a rank is told when the save fails."""
    try:
        dcp_save({"x": torch.ones(9)}, storage_writer=GDSWriter(path))
    except CheckpointException as error:
        return f"{type(unwrapped(error)).__name__} {unwrapped(error)}"
    return ""


def load_told(path: Path) -> str:
    """What a rank is told when the load fails."""
    try:
        dcp_load({"x": torch.ones(9)}, storage_reader=GDSReader(path))
    except CheckpointException as error:
        return str(unwrapped(error))
    return ""


@pytest.fixture
def locked() -> Iterator[Path]:
    """A directory in which this process, root or not, may create nothing."""
    with restricted(0o555) as path:
        yield path


def test_a_directory_that_may_not_be_written(locked: Path) -> None:
    with refused(TransferError, locked) as refusal:
        save({"x": torch.ones(9)}, locked)
    assert isinstance(refusal.error, TransferError)
    assert refusal.error.errno == errno.EACCES
    assert list(locked.iterdir()) == []


def test_a_directory_that_may_not_be_made(locked: Path) -> None:
    with refused(TransferError, locked / "new") as refusal:
        save({"x": torch.ones(9)}, locked / "new" / "step1")
    assert isinstance(refusal.error, TransferError)
    assert refusal.error.errno == errno.EACCES


def test_a_directory_whose_parent_may_not_be_read(tmp_path: Path) -> None:
    """The report says that its name could not be made durable; to make one there is refused."""
    # All modules that a save and a load import: another user may not read them.
    save({"x": torch.ones(9)}, tmp_path)
    load({"x": torch.zeros(9)}, tmp_path)
    with restricted(0o333) as parent:
        path = parent / "step1"
        with refused(TransferError, parent, "sync=False") as refusal:
            save({"x": torch.ones(9)}, path)
        assert isinstance(refusal.error, TransferError)
        assert refusal.error.errno == errno.EACCES
        assert not path.exists()
        path.mkdir()
        for directory, told in ((path, True), (path / "a", True), (path / "a" / "b", False)):
            with GDSWriter(directory) as writer:
                dcp_save({"x": torch.ones(9)}, storage_writer=writer, no_dist=True)
                assert writer.report is not None
                assert writer.report.synced
                reason = writer.report.unsynced_reason
            assert reason.startswith(f"{parent} could not be synced") if told else reason == ""
            target = torch.zeros(9)
            load({"x": target}, directory)
            assert target.eq(1).all()


@pytest.mark.parametrize("below", ["", "step1"], ids=["there", "above"])
def test_a_file_where_the_directory_should_be(below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"precious")
    with refused(DcpGdsError, file) as refusal:
        save({"x": torch.ones(9)}, file / below)
    assert isinstance(refusal.error, OSError)
    assert refusal.error.errno in (errno.ENOTDIR, errno.EEXIST)
    assert snapshot(tmp_path) == {"file": b"precious"}


@pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)
def test_a_checkpoint_that_is_there(storage: Storage, tmp_path: Path) -> None:
    save({"x": torch.ones(9)}, tmp_path, storage)
    before = snapshot(tmp_path)
    with refused(CheckpointExistsError, tmp_path, "overwrite=True"):
        save({"x": torch.zeros(9)}, tmp_path)
    assert snapshot(tmp_path) == before


def test_files_that_are_no_checkpoint_are_left_alone(tmp_path: Path) -> None:
    """An old shard file without `.metadata`, as a killed save leaves it, is nobody's to replace."""
    (tmp_path / "__0_0.distcp").write_bytes(b"old")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    save({"x": torch.ones(9)}, tmp_path)
    save({"x": torch.ones(9)}, tmp_path, overwrite=True)
    files = snapshot(tmp_path)
    assert (files["__0_0.distcp"], files["notes.txt"]) == (b"old", b"mine")


def test_a_link_in_the_place_of_the_metadata(tmp_path: Path) -> None:
    """A dangling link is not followed to create a file elsewhere."""
    path = tmp_path / "step"
    path.mkdir()
    (path / ".metadata").symlink_to(tmp_path / "elsewhere")
    with refused(CheckpointExistsError, path):
        save({"x": torch.ones(9)}, path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_no_metadata(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    path = tmp_path / name
    with refused(NotCommittedError, path, ".metadata") as refusal:
        load({"x": torch.ones(9)}, path)
    assert isinstance(refusal.error, FileNotFoundError)
    assert refusal.error.filename == str(path)
    with refused(NotCommittedError, path):
        empty_load(path, OURS)
    assert not (tmp_path / "missing").exists()


def test_a_killed_save_is_not_committed(tmp_path: Path) -> None:
    save({"x": torch.ones(9)}, tmp_path)
    (tmp_path / ".metadata").unlink()
    with refused(NotCommittedError, tmp_path):
        load({"x": torch.ones(9)}, tmp_path)


@pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)
def test_a_shard_file_that_is_gone(storage: Storage, tmp_path: Path) -> None:
    save({"x": torch.ones(9)}, tmp_path, storage)
    (file,) = tmp_path.glob("*.distcp")
    file.unlink()
    target = torch.full((9,), 5.0)
    with refused(DcpGdsError, file):
        load({"x": target}, tmp_path)
    assert target.eq(5).all()


@pytest.mark.timeout(60, method="signal")
@pytest.mark.parametrize("name", ["*.distcp", ".metadata"])
@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_something_else_in_the_place_of_a_file(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "step"
    save({"x": torch.ones(9)}, path)
    (file,) = path.glob(name)
    file.rename(tmp_path / "moved")
    match kind:
        case "link":
            file.symlink_to(tmp_path / "moved")
        case "directory":
            file.mkdir()
        case "pipe":  # opening it for reading would wait for a writer for ever
            os.mkfifo(file)
    with refused(DcpGdsError, file):
        load({"x": torch.ones(9)}, path)


def test_every_rank_is_told(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    save({"x": torch.ones(9)}, tmp_path)
    before = snapshot(tmp_path)
    told = ranks(2).run(save_told, tmp_path)
    assert told[0] == told[1]
    assert told[0].startswith("CheckpointExistsError")
    assert str(tmp_path) in told[0]
    assert snapshot(tmp_path) == before
    told = ranks(2).run(load_told, tmp_path / "missing")
    assert told[0] == told[1]
    assert str(tmp_path / "missing") in told[0]


def read_with_one_file_gone(path: Path) -> str:
    """Each rank reads its own shard; rank 1 finds its file cut short."""
    try:
        dcp_load({f"x{dist.get_rank()}": torch.zeros(5000)}, storage_reader=GDSReader(path))
    except CheckpointException as error:
        return f"{sorted(error.failures)} {type(unwrapped(error)).__name__}"
    return ""


def save_one_each(path: Path) -> None:
    rank = dist.get_rank()
    dcp_save({f"x{rank}": torch.ones(5000)}, storage_writer=GDSWriter(path))


def test_one_rank_fails_to_read(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(save_one_each, tmp_path)
    (file,) = tmp_path.glob("__1_*.distcp")
    os.truncate(file, 4096)
    told = ranks(2).run(read_with_one_file_gone, tmp_path)
    assert told == [f"[1] {CorruptCheckpointError.__name__}"] * 2
