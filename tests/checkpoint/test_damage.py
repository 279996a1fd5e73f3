"""Metadata and shard files that do not fit together are refused before a target is touched.

Method: `.metadata` files rewritten to name other places, ranges, sizes and kinds, pickles that
name functions, and shard files cut short, for checkpoints of ours and of DCP's own writer.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from dcp_gds import GDSReader
from dcp_gds.errors import CorruptCheckpointError, DcpGdsError, UnsupportedError
from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.refusal import refused
from tests.checkpoint.shardfiles import rewrite_metadata
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_load, load, save

MIB = 1 << 20
X = MetadataIndex("x", torch.Size([0]))
FAR = 1 << 62

both_kinds = pytest.mark.parametrize("saver", [OURS, STOCK], ids=lambda storage: storage.name)

# Names that lead out of the directory, or to no file in it.
PATHS = [
    "../outside.distcp",
    "a/../../outside.distcp",
    "..",
    ".",
    "",
    "a\0b",
    "./../outside.distcp",
]

# Ranges that no shard file of these tests has; the last two wrap around in 64 bits.
RANGES: dict[str, dict[str, int]] = {
    "behind": {"offset": 1 << 40},
    "longer": {"length": 1 << 40},
    "negative-offset": {"offset": -1},
    "negative-length": {"length": -1},
    "no-length": {"length": 0},
    "far": {"offset": FAR, "length": FAR},
    "wrapping": {"offset": (1 << 63) - 1, "length": (1 << 63) - 1},
}


class Evil:
    """Pickles into a call that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


class Opaque:
    """A class that `torch.load(weights_only=True)` does not know."""


def saved(path: Path, saver: Storage) -> dict[str, torch.Tensor]:
    """Save two tensors and a number; the tensors to load into."""
    state = {"x": dense_tensor((5000,), torch.float32), "y": dense_tensor((3, 7), torch.float32)}
    save({**state, "n": 5}, path, saver)
    return {name: filled_tensor(tensor.shape, tensor.dtype) for name, tensor in state.items()}


def refuse_untouched(
    targets: dict[str, torch.Tensor], path: Path, kind: type[BaseException], *texts: object
) -> None:
    """Expect a refusal that leaves every target as it was."""
    before = {name: raw(target) for name, target in targets.items()}
    with refused(kind, *texts):
        load(dict(targets), path)
    assert {name: raw(target) for name, target in targets.items()} == before


def placed(**changes: object) -> Callable[[Metadata], None]:
    """A change of where the item `x` is said to be."""

    def change(metadata: Metadata) -> None:
        metadata.storage_data[X] = dataclasses.replace(metadata.storage_data[X], **changes)

    return change


@both_kinds
@pytest.mark.parametrize("name", [*PATHS, "/absolute.distcp"], ids=repr)
def test_a_name_that_leads_out(name: str, saver: Storage, tmp_path: Path) -> None:
    path = tmp_path / "step"
    targets = saved(path, saver)
    (file,) = path.glob("*.distcp")
    # A file that would load is there: only the name is wrong.
    (tmp_path / "outside.distcp").write_bytes(file.read_bytes())
    absolute = name.startswith("/")
    named = str(tmp_path / "outside.distcp") if absolute else name
    rewrite_metadata(path, placed(relative_path=named))
    refuse_untouched(targets, path, CorruptCheckpointError, path / ".metadata")


@both_kinds
@pytest.mark.parametrize("wrong", RANGES)
def test_a_range_outside_the_file(wrong: str, saver: Storage, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)
    rewrite_metadata(tmp_path, placed(**RANGES[wrong]))
    refuse_untouched(targets, tmp_path, CorruptCheckpointError, "x: ", tmp_path)


@both_kinds
@pytest.mark.parametrize("shift", [-1, 1, 512, 4096])
def test_a_range_that_is_shifted(shift: int, saver: Storage, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)
    (file,) = tmp_path.glob("*.distcp")

    def change(metadata: Metadata) -> None:
        info = metadata.storage_data[X]
        metadata.storage_data[X] = dataclasses.replace(info, offset=info.offset + shift)

    rewrite_metadata(tmp_path, change)
    refuse_untouched(targets, tmp_path, CorruptCheckpointError, file)


@both_kinds
def test_items_exchanged(saver: Storage, tmp_path: Path) -> None:
    """`x` is said to be where `y` is: another shape than the metadata promises."""
    targets = saved(tmp_path, saver)

    def change(metadata: Metadata) -> None:
        y = MetadataIndex("y", torch.Size([0, 0]))
        metadata.storage_data[X] = metadata.storage_data[y]

    rewrite_metadata(tmp_path, change)
    with refused(CorruptCheckpointError, "x"):
        load(dict(targets), tmp_path)


@both_kinds
def test_a_byte_item_in_the_place_of_a_tensor(saver: Storage, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)

    def change(metadata: Metadata) -> None:
        metadata.storage_data[X] = metadata.storage_data[MetadataIndex("n")]

    rewrite_metadata(tmp_path, change)
    with refused(CorruptCheckpointError, "x"):
        load(dict(targets), tmp_path)


@both_kinds
def test_an_item_that_is_nowhere(saver: Storage, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)
    rewrite_metadata(tmp_path, lambda metadata: metadata.storage_data.pop(X))
    refuse_untouched(targets, tmp_path, CorruptCheckpointError, "x")


@both_kinds
@pytest.mark.parametrize("left", [0.0, 0.3, 0.9, 1.0], ids=lambda part: f"{part:.0%}")
def test_a_shard_file_cut_short(left: float, saver: Storage, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)
    (file,) = tmp_path.glob("*.distcp")
    length = file.stat().st_size
    os.truncate(file, min(int(length * left), length - 1))
    refuse_untouched(targets, tmp_path, CorruptCheckpointError, file)


def test_a_shard_file_with_something_behind_it(tmp_path: Path) -> None:
    targets = saved(tmp_path, OURS)
    (file,) = tmp_path.glob("*.distcp")
    with file.open("ab") as stream:
        stream.write(bytes(4096))
    refuse_untouched(targets, tmp_path, CorruptCheckpointError, file)


@both_kinds
@pytest.mark.parametrize("content", ["empty", "short", "garbage", "other"])
def test_metadata_that_is_none(content: str, saver: Storage, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)
    file = tmp_path / ".metadata"
    data = file.read_bytes()
    file.write_bytes(
        {
            "empty": b"",
            "short": data[: len(data) // 2],
            "garbage": bytes(range(256)) * 9,
            "other": pickle.dumps({"x": 1}),
        }[content]
    )
    refuse_untouched(targets, tmp_path, CorruptCheckpointError, file)


def test_metadata_that_names_a_function(tmp_path: Path) -> None:
    targets = saved(tmp_path, STOCK)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "owned")))
    refuse_untouched(targets, tmp_path, UnsupportedError, "system", "allow")
    assert not (tmp_path / "owned").exists()


def test_planner_data_of_an_own_class(tmp_path: Path) -> None:
    """A custom planner's class in the metadata needs `allow`, by its full name."""
    targets = saved(tmp_path, STOCK)

    def change(metadata: Metadata) -> None:
        metadata.planner_data = {**metadata.planner_data, "own": Opaque()}

    rewrite_metadata(tmp_path, change)
    name = f"{Opaque.__module__}.{Opaque.__qualname__}"
    refuse_untouched(targets, tmp_path, UnsupportedError, name)
    load(dict(targets), tmp_path, allow=(name,))
    assert raw(targets["y"]) == raw(dense_tensor((3, 7), torch.float32))


@both_kinds
def test_untrusted_bytes(saver: Storage, tmp_path: Path) -> None:
    save({"model": {"config": Opaque()}, "n": 3}, tmp_path, saver)
    with refused(UnsupportedError, "model.config"):
        load({"model": {"config": None}, "n": 0}, tmp_path, trusted=False)
    target: dict[str, Any] = {"n": 0}
    load(target, tmp_path, trusted=False)
    assert target["n"] == 3
    trusting: dict[str, Any] = {"model": {"config": None}}
    load(trusting, tmp_path)
    assert isinstance(trusting["model"]["config"], Opaque)


@both_kinds
def test_another_dtype(saver: Storage, tmp_path: Path) -> None:
    source = torch.linspace(-3, 3, 5000)
    save({"x": source}, tmp_path, saver)
    target = filled_tensor((5000,), torch.bfloat16)
    with pytest.warns(UserWarning, match=r"x.*float32.*bfloat16"):
        load({"x": target}, tmp_path)
    assert raw(target) == raw(source.to(torch.bfloat16))


@both_kinds
def test_another_dtype_when_strict(saver: Storage, tmp_path: Path) -> None:
    save({"x": torch.ones(5000), "y": torch.ones(3, 7)}, tmp_path, saver)
    targets = {
        "x": filled_tensor((5000,), torch.bfloat16),
        "y": filled_tensor((3, 7), torch.float32),
    }
    before = {name: raw(target) for name, target in targets.items()}
    with refused(DcpGdsError, "x", "float32", "bfloat16"):
        dcp_load(dict(targets), storage_reader=GDSReader(tmp_path, strict_dtype=True), no_dist=True)
    assert {name: raw(target) for name, target in targets.items()} == before
    load({"y": targets["y"]}, tmp_path, strict_dtype=True)
    assert targets["y"].eq(1).all()


@both_kinds
def test_what_the_planner_refuses(saver: Storage, tmp_path: Path) -> None:
    saved(tmp_path, saver)
    with refused(RuntimeError, "Missing key", "absent"):
        load({"absent": torch.ones(3)}, tmp_path)
    with refused(ValueError, "Size mismatch", "y"):
        load({"y": torch.ones(7, 3)}, tmp_path)
