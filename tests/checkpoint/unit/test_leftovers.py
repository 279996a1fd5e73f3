"""What a killed save leaves is known by its name and by no metadata naming it; nothing else is.

Method: directories of files with names of every kind, and metadata that name some of them.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from dcp_gds.checkpoint.leftovers import Removal, leftovers_of, remove_files, shard_files_of
from dcp_gds.format.metadata import ShardFileRecord, dump_metadata

OLD, NEW = "0123456789abcdef" * 2, "fedcba9876543210" * 2
LEFT = {
    f"__0_0-{OLD}.distcp",
    f"__1_0-{OLD}.distcp",
    f"__12_3-{OLD}.distcp",
    f".metadata-{OLD}.tmp",
    f"__0.metadata-{OLD}.tmp",
    f"__12.metadata-{OLD}.tmp",
}
NOT_LEFT = {
    "__0_0.distcp",
    "model.safetensors",
    "README",
    f"__0_0-{OLD[:-1]}.distcp",
    f"__0_0-{OLD}0.distcp",
    f"__0_0-{OLD.upper()}.distcp",
    f"__0_0-{OLD[:-1]}g.distcp",
    f"__0_0-{OLD}.distcp.bak",
    f"__0_0-{OLD}.distcp\n",
    f"x__0_0-{OLD}.distcp",
    f"__0-{OLD}.distcp",
    f"__a_0-{OLD}.distcp",
    f"__\N{ARABIC-INDIC DIGIT ONE}_0-{OLD}.distcp",
    f"__0_0-{OLD}.tmp",
    f".metadata-{OLD}",
    f".metadata-{OLD[1:]}.tmp",
    f"metadata-{OLD}.tmp",
    f"__0_0.metadata-{OLD}.tmp",
    ".metadata.tmp",
    "__0.metadata.tmp",
}


def metadata_of(*names: str) -> Metadata:
    storage = {MetadataIndex(name): _StorageInfo(name, 0, 10) for name in names}
    return Metadata({}, storage_data=storage)


def stock_metadata(*names: str) -> bytes:
    return pickle.dumps(metadata_of(*names))


def our_metadata(*names: str) -> bytes:
    records = [ShardFileRecord(name, 10, 0) for name in names]
    return dump_metadata(metadata_of(*names), token=NEW, shard_files=records)


def known(path: Path) -> set[str]:
    """What a metadata file that can be read names."""
    names = shard_files_of(path)
    assert names is not None
    return set(names)


def left_in(directory: Path, *, rank: int | None = None) -> set[str]:
    """Leftovers of a directory whose metadata can be read."""
    names = leftovers_of(directory, rank=rank)
    assert names is not None
    return set(names)


def fill(directory: Path) -> None:
    for name in LEFT | NOT_LEFT:
        (directory / name).write_bytes(b"content")


def test_what_a_checkpoint_named_is_known(tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    assert known(path) == set()
    path.write_bytes(stock_metadata("a", "b"))
    assert known(path) == {"a", "b"}
    path.write_bytes(our_metadata("a"))
    assert known(path) == {"a"}


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(print), our_metadata("a")[:-1]])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ".metadata"
    path.write_bytes(content)
    assert shard_files_of(path) is None


def test_metadata_that_are_no_file_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".metadata")
    (tmp_path / "__0.metadata").mkdir()
    assert shard_files_of(tmp_path / ".metadata") is None
    assert shard_files_of(tmp_path / "__0.metadata") is None


def test_leftovers_are_known_by_their_names(tmp_path: Path) -> None:
    fill(tmp_path)
    assert left_in(tmp_path) == LEFT


def test_a_rank_by_itself_knows_only_its_own(tmp_path: Path) -> None:
    fill(tmp_path)
    for rank in (0, 1, 2, 12):
        own = {name for name in LEFT if name.startswith((f"__{rank}_", f"__{rank}."))}
        assert left_in(tmp_path, rank=rank) == own


def test_links_and_directories_are_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / f"__0_0-{OLD}.distcp").symlink_to(tmp_path / "file")
    (tmp_path / f"__1_0-{OLD}.distcp").symlink_to(tmp_path / "nowhere")
    (tmp_path / f"__2_0-{OLD}.distcp").mkdir()
    os.mkfifo(tmp_path / f".metadata-{OLD}.tmp")
    assert left_in(tmp_path) == set()


@pytest.mark.parametrize("name", [".metadata", "__0.metadata", "__7.metadata", "__x.metadata"])
@pytest.mark.parametrize("write", [stock_metadata, our_metadata])
def test_what_any_metadata_name_is_none(tmp_path: Path, name: str, write: object) -> None:
    fill(tmp_path)
    named = f"__1_0-{OLD}.distcp"
    assert callable(write)
    (tmp_path / name).write_bytes(write(named))
    assert left_in(tmp_path) == LEFT - {named}


@pytest.mark.parametrize("name", [".metadata", "__7.metadata"])
@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps(print), our_metadata("a")[:-1]])
def test_without_all_metadata_nothing_is_known(tmp_path: Path, name: str, content: bytes) -> None:
    fill(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert leftovers_of(tmp_path, rank=None) is None


def test_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).touch()
    (tmp_path / "directory").mkdir()
    removal = remove_files(tmp_path, ["old", "gone already", "directory"])
    assert removal == Removal(removed=1, kept=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "new"]
