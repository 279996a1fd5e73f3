"""Metadata that promise more than the files hold are refused before a planner allocates it.

Method: checkpoints whose metadata are rewritten to claim an exbibyte, in a tensor's size, in an
item's length as well, or in many tensors that share one item, loaded into an empty state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from dcp_gds.errors import CorruptCheckpointError
from tests.checkpoint.refusal import refused
from tests.checkpoint.shardfiles import items_of, rewrite_metadata
from tests.checkpoint.storage import OURS, STOCK, Storage, load, save
from tests.checkpoint.test_conversion import empty_load

EXBIBYTE = 1 << 60
both_kinds = pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)


def entry_of(metadata: Metadata) -> TensorStorageMetadata:
    entry = metadata.state_dict_metadata["x"]
    assert isinstance(entry, TensorStorageMetadata)
    return entry


def long_tensor(metadata: Metadata) -> None:
    entry = entry_of(metadata)
    entry.size = entry.chunks[0].sizes = torch.Size([EXBIBYTE // 4])


def long_item(metadata: Metadata) -> None:
    long_tensor(metadata)
    (info,) = metadata.storage_data.values()
    info.length = EXBIBYTE + 1577


def many_tensors(metadata: Metadata) -> None:
    """A thousand tensors of 32 KiB are said to be the same item."""
    (info,) = metadata.storage_data.values()
    for number in range(1000):
        metadata.state_dict_metadata[f"y{number}"] = copy.deepcopy(entry_of(metadata))
        metadata.storage_data[MetadataIndex(f"y{number}", torch.Size([0]), 0)] = info


@both_kinds
@pytest.mark.parametrize("change", [long_tensor, long_item, many_tensors])
def test_more_than_the_files_hold(
    change: Callable[[Metadata], None], storage: Storage, tmp_path: Path
) -> None:
    save({"x": torch.ones(8192)}, tmp_path, storage)
    rewrite_metadata(tmp_path, change)
    with refused(CorruptCheckpointError, "x: ", "the files hold", tmp_path):
        empty_load(tmp_path, OURS)
    with refused(CorruptCheckpointError, "x: ", "the files hold"):
        load({"x": torch.zeros(8192)}, tmp_path)


@both_kinds
def test_a_negative_size_makes_no_room(storage: Storage, tmp_path: Path) -> None:
    save({"x": torch.ones(8192), "y": torch.ones(2)}, tmp_path, storage)

    def change(metadata: Metadata) -> None:
        long_tensor(metadata)
        other = metadata.state_dict_metadata["y"]
        assert isinstance(other, TensorStorageMetadata)
        other.size = torch.Size([-EXBIBYTE])

    rewrite_metadata(tmp_path, change)
    with refused(CorruptCheckpointError, "x: ", "the files hold"):
        empty_load(tmp_path, OURS)


@both_kinds
def test_files_that_are_elsewhere_are_not_held_against_the_metadata(
    storage: Storage, tmp_path: Path
) -> None:
    """The load itself says what it means that one is not there."""
    save({"x": torch.ones(8192)}, tmp_path, storage)
    (item,) = items_of(tmp_path)
    item.file.unlink()
    with refused(CorruptCheckpointError, "is not there"):
        empty_load(tmp_path, OURS)
