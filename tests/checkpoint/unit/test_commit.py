"""Each step of a commit works and fails as it should: called one by one on real directories."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from dcp_gds.checkpoint import commit
from dcp_gds.errors import CorruptCheckpointError, TransferError, UnsupportedError
from dcp_gds.format.metadata import ShardFileRecord

TOKEN = "0123456789abcdef" * 2


def metadata_of() -> Metadata:
    chunks = [ChunkStorageMetadata(torch.Size([2 * i]), torch.Size([2])) for i in range(2)]
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([4]), chunks)
    return Metadata({"w": tensor, "epoch": BytesStorageMetadata()})


def result(name: str, length: int) -> commit.ShardFileResult:
    return commit.ShardFileResult(ShardFileRecord(name, length, 0), rank=3, host="node7")


def test_a_complete_save_passes() -> None:
    written = [MetadataIndex("w", [0]), MetadataIndex("w", [2]), MetadataIndex("epoch")]
    commit.check_complete(metadata_of(), written)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_item_is_named(missing: int) -> None:
    written = [MetadataIndex("w", [0]), MetadataIndex("w", [2]), MetadataIndex("epoch")]
    fqn = written.pop(missing).fqn
    with pytest.raises(UnsupportedError, match=rf"^{fqn}: .*no rank wrote"):
        commit.check_complete(metadata_of(), written)


@pytest.mark.parametrize("foreign", [MetadataIndex("other"), MetadataIndex("w", [1])])
def test_an_item_that_no_load_would_find_is_named(foreign: MetadataIndex) -> None:
    written = [MetadataIndex("w", [0]), MetadataIndex("w", [2]), MetadataIndex("epoch"), foreign]
    with pytest.raises(UnsupportedError, match=rf"^{foreign.fqn}: .*no load would find it"):
        commit.check_complete(metadata_of(), written)


def test_an_item_written_twice_is_complete() -> None:
    written = [MetadataIndex("w", [0]), MetadataIndex("w", [2]), MetadataIndex("epoch")]
    commit.check_complete(metadata_of(), [*written, *written])


def test_a_shard_file_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"12345")
    commit.check_shard_files(tmp_path, [result("here", 5)])
    with pytest.raises(CorruptCheckpointError, match=r"rank 3 on host node7.*no such file") as info:
        commit.check_shard_files(tmp_path, [result("here", 5), result("there", 5)])
    assert info.value.path == str(tmp_path / "there")
    with pytest.raises(CorruptCheckpointError, match=r"wrote 6 bytes.*sees 5 bytes"):
        commit.check_shard_files(tmp_path, [result("here", 6)])


def test_a_directory_that_cannot_be_looked_into_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TransferError) as info:
        commit.check_shard_files(tmp_path / "file", [result("shard", 5)])
    assert info.value.errno == errno.ENOTDIR


def test_publishing_replaces_at_once_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    commit.publish(path, b"old", token=TOKEN, sync=True)
    commit.publish(path, b"new", token=TOKEN, sync=False)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_publication_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    path.mkdir()
    (path / "in the way").touch()
    with pytest.raises(TransferError, match="cannot publish the metadata"):
        commit.publish(path, b"new", token=TOKEN, sync=True)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(TransferError) as info:
        commit.publish(tmp_path / "missing" / ".metadata", b"new", token=TOKEN, sync=True)
    assert info.value.errno == errno.ENOENT
