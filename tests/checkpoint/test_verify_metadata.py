"""Metadata that do not fit together, or not with the shard files, are found by a verification.

Method: `.metadata` files rewritten with right checksums, cut, exchanged, or naming a function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict
from dcp_gds.format.metadata import dump_metadata, split_metadata
from tests.checkpoint.shardfiles import flip_bit, metadata_of, rewrite_metadata
from tests.checkpoint.storage import STOCK, Storage
from tests.checkpoint.verifying import both_kinds, damaged, saved, token_of, unreadable

W = MetadataIndex("w", torch.Size([0, 0]))


def test_metadata_without_their_trailer(tmp_path: Path) -> None:
    """Cut off right behind the pickle: to the byte what stock DCP writes."""
    file = saved(tmp_path)
    pickled, _ = split_metadata((tmp_path / ".metadata").read_bytes(), path=file)
    (tmp_path / ".metadata").write_bytes(bytes(pickled))
    damaged(tmp_path, "no trailer", file)


def test_a_shard_file_that_the_trailer_does_not_name(tmp_path: Path) -> None:
    file = saved(tmp_path)
    token = token_of(tmp_path)
    data = dump_metadata(metadata_of(tmp_path), token=token, shard_files=())
    (tmp_path / ".metadata").write_bytes(data)
    damaged(tmp_path, "the trailer does not name", file.name)


def placed(**changes: object) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata.storage_data[W] = dataclasses.replace(metadata.storage_data[W], **changes)

    return change


def entry_of(metadata: Metadata) -> TensorStorageMetadata:
    entry = metadata.state_dict_metadata["w"]
    assert isinstance(entry, TensorStorageMetadata)
    return entry


def without_a_place(metadata: Metadata) -> None:
    metadata.storage_data.pop(W)


def place_without_an_item(metadata: Metadata) -> None:
    metadata.state_dict_metadata.pop("w")


def larger_tensor(metadata: Metadata) -> None:
    entry_of(metadata).size = torch.Size([31, 40])


def smaller_tensor(metadata: Metadata) -> None:
    entry_of(metadata).size = torch.Size([29, 40])


def another_dtype(metadata: Metadata) -> None:
    entry_of(metadata).properties.dtype = torch.int32


def another_shape(metadata: Metadata) -> None:
    entry_of(metadata).size = entry_of(metadata).chunks[0].sizes = torch.Size([40, 30])


def exbibyte(metadata: Metadata) -> None:
    entry_of(metadata).size = entry_of(metadata).chunks[0].sizes = torch.Size([1 << 58, 1])


def more_than_64_bits(metadata: Metadata) -> None:
    entry_of(metadata).size = entry_of(metadata).chunks[0].sizes = torch.Size([1 << 62, 1 << 62])


def bytes_in_place_of_a_tensor(metadata: Metadata) -> None:
    place = metadata.storage_data[MetadataIndex("step")]
    metadata.storage_data[W] = place
    metadata.state_dict_metadata.pop("step")
    metadata.storage_data.pop(MetadataIndex("step"))


def shared(metadata: Metadata) -> None:
    metadata.state_dict_metadata["twin"] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex("twin")] = metadata.storage_data[MetadataIndex("step")]


@both_kinds
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without_a_place, "w: the metadata do not say where it is"),
        (place_without_an_item, "w: the metadata say where it is, and not what"),
        (larger_tensor, "w: its chunks have 1200 elements"),
        (smaller_tensor, "w: a chunk of size (30, 40)"),
        (another_dtype, "torch.int32"),
        (another_shape, "(40, 30)"),
        (exbibyte, "w: "),
        (more_than_64_bits, "w: "),
        (bytes_in_place_of_a_tensor, "w: "),
        (placed(offset=1 << 40), "w: the metadata place it at"),
        (placed(length=64), "w: "),
        (placed(relative_path="other.distcp"), "other.distcp"),
        (placed(relative_path="../other.distcp"), "below the checkpoint's directory"),
        (placed(relative_path="/etc/passwd"), "below the checkpoint's directory"),
        (shared, "before the end of"),
    ],
)
def test_metadata_that_do_not_fit(
    change: Callable[[Metadata], None], text: str, storage: Storage, tmp_path: Path
) -> None:
    saved(tmp_path, storage)
    rewrite_metadata(tmp_path, change)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.DAMAGED
    assert any(text in str(damage) for damage in report.damages), report.damages


def test_no_metadata(tmp_path: Path) -> None:
    unreadable(tmp_path, "no committed checkpoint")
    unreadable(tmp_path / "missing", "No such file")
    (tmp_path / "file").touch()
    unreadable(tmp_path / "file", "Not a directory")


def test_metadata_that_name_a_function(tmp_path: Path) -> None:
    saved(tmp_path, STOCK)
    (tmp_path / ".metadata").write_bytes(b"\x80\x04\x8c\x02os\x8c\x06system\x93.")
    unreadable(tmp_path, "os.system")


def test_damaged_metadata(tmp_path: Path) -> None:
    saved(tmp_path)
    flip_bit(tmp_path / ".metadata", offset=77)
    damaged(tmp_path, ".metadata")
