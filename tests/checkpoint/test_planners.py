"""Every planner works: those DCP ships with all their options, and those that users write.

Method: states of nested containers, bytes and tensors, saved through planners that allocate,
transform, rename or change their mind, and loaded by ours and by DCP's own storage.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from dcp_gds import GDSReader, GDSWriter
from tests.checkpoint.planners import (
    CommittingLoadPlanner,
    HalfPlanner,
    RandomPlanner,
    RawBytesLoadPlanner,
    RawBytesPlanner,
    RenamingPlanner,
    ScalingPlanner,
)
from tests.checkpoint.rawbytes import dense_tensor, raw
from tests.checkpoint.storage import (
    PAIRS,
    Storage,
    dcp_load,
    dcp_save,
    load,
    pair_name,
    save,
)

MIB = 1 << 20
BYTE_LENGTHS = [0, 1, 4095, 4096, 4097, 3 * MIB + 1]

both_ways = pytest.mark.parametrize("pair", PAIRS, ids=pair_name)


def nested(*, seed: int) -> dict[str, Any]:
    """Dicts in lists in dicts, with values that are no tensors between them."""
    return {
        "model": {"layers": [{"w": dense_tensor((3, 5), torch.float32, seed=seed)}, seed]},
        "names": ["a", f"b{seed}"],
        "pair": (seed, 2.5),
        "none": None,
        "flag": seed % 2 == 0,
        "deep": {"er": {"est": [[dense_tensor((2,), torch.int64, seed=seed + 1)]]}},
        "blob": bytes(range(seed, seed + 9)),
    }


def comparable(value: Any) -> Any:
    """The value with tensors replaced by their bytes."""
    if isinstance(value, dict):
        return {key: comparable(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(comparable(child) for child in value)
    return raw(value) if isinstance(value, torch.Tensor) else value


@both_ways
@pytest.mark.parametrize("flatten", [True, False], ids=["flatten", "whole"])
def test_nested_containers(pair: tuple[Storage, Storage], flatten: bool, tmp_path: Path) -> None:
    saver, loader = pair
    dcp_save(
        nested(seed=4),
        storage_writer=saver.writer(tmp_path),
        planner=DefaultSavePlanner(flatten, flatten),
    )
    target = nested(seed=7)
    dcp_load(
        target,
        storage_reader=loader.reader(tmp_path),
        planner=DefaultLoadPlanner(flatten, flatten),
    )
    assert comparable(target) == comparable(nested(seed=4))


@both_ways
def test_values_that_are_no_tensors(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    save({"epoch": 7, "empty": io.BytesIO(), "text": "ä"}, tmp_path, saver)
    target: dict[str, Any] = {"epoch": 0, "empty": None, "text": ""}
    load(target, tmp_path, loader)
    assert (target["epoch"], target["empty"].read(), target["text"]) == (7, b"", "ä")


@both_ways
def test_bytes_of_every_length(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    state: dict[str, Any] = {
        str(length): raw(dense_tensor((length,), torch.uint8)) for length in BYTE_LENGTHS
    }
    dcp_save(dict(state), storage_writer=saver.writer(tmp_path), planner=RawBytesPlanner())
    target: dict[str, Any] = dict.fromkeys(state)
    dcp_load(target, storage_reader=loader.reader(tmp_path), planner=RawBytesLoadPlanner())
    assert target == state


@pytest.mark.slow
@both_ways
def test_600_mib_of_bytes(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    block = raw(dense_tensor((MIB,), torch.uint8))
    value = block * 600
    dcp_save({"b": value}, storage_writer=saver.writer(tmp_path), planner=RawBytesPlanner())
    target: dict[str, Any] = {"b": b""}
    dcp_load(target, storage_reader=loader.reader(tmp_path), planner=RawBytesLoadPlanner())
    assert target["b"] == value


@both_ways
def test_a_planner_that_allocates(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    state = {f"w{n}": torch.randn(5, 7, dtype=torch.float64) for n in range(3)}
    dcp_save(state | {"n": 3}, storage_writer=saver.writer(tmp_path), planner=HalfPlanner())
    target: dict[str, Any] = {f"w{n}": torch.zeros(5, 7, dtype=torch.float16) for n in range(3)}
    load(target | {"n": 0}, tmp_path, loader)
    for name, tensor in target.items():
        assert raw(tensor) == raw(state[name].to(torch.float16))


def test_what_a_planner_allocates_is_released(tmp_path: Path) -> None:
    """64 MiB resolved in pieces of 4 MiB never all exist, though the staging would hold them."""
    state = {f"w{n:02}": torch.full((2 * MIB,), float(n)) for n in range(16)}
    planner = HalfPlanner()
    with GDSWriter(tmp_path, staging_bytes_max=16 * MIB, transfer_bytes=4 * MIB) as writer:
        dcp_save(dict(state), storage_writer=writer, planner=planner)
    assert planner.alive_max <= 4
    target = {name: torch.zeros(2 * MIB, dtype=torch.float16) for name in state}
    load(dict(target), tmp_path)
    assert all(target[name].eq(tensor[0]).all() for name, tensor in state.items())


@both_ways
def test_a_planner_that_transforms(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    source = torch.arange(99.0).view(9, 11)
    dcp_save({"x": source}, storage_writer=saver.writer(tmp_path), planner=ScalingPlanner())
    target = torch.zeros(9, 11)
    load({"x": target}, tmp_path, loader)
    assert torch.equal(target, source * 3)


@both_ways
def test_a_planner_that_renames(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    source, target = dense_tensor((9,), torch.int32), torch.zeros(9, dtype=torch.int32)
    dcp_save({"x": source}, storage_writer=saver.writer(tmp_path), planner=RenamingPlanner())
    load({"ema_x": target}, tmp_path, loader)
    assert torch.equal(target, source)


def test_a_planner_that_changes_its_mind(tmp_path: Path) -> None:
    """What was written is what was summed, even if the planner gives other bits at every call."""
    names = [f"w{n}" for n in range(4)]
    state = {name: torch.zeros(300_000) for name in names}
    dcp_save(dict(state), storage_writer=GDSWriter(tmp_path), planner=RandomPlanner())
    with GDSReader(tmp_path, verify=True) as reader:
        dcp_load(state, storage_reader=reader)
    assert all(0.4 < tensor.mean() < 0.6 for tensor in state.values())


@both_ways
def test_a_planner_that_commits(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    state = {"x": dense_tensor((40, 7), torch.int32), "y": dense_tensor((), torch.float64)}
    target = {"x": torch.zeros(40, 7, dtype=torch.int32), "y": torch.zeros((), dtype=torch.float64)}
    save(dict(state), tmp_path, saver)
    planner = CommittingLoadPlanner()
    dcp_load(dict(target), storage_reader=loader.reader(tmp_path), planner=planner)
    assert comparable(target) == comparable(state)
    assert list(planner.committed.values()) == [1, 1]


def test_partial_load(tmp_path: Path) -> None:
    save({"a": torch.ones(3), "b": torch.ones(4)}, tmp_path)
    target: dict[str, Any] = {"a": torch.zeros(3), "new": torch.full((2,), 5.0)}
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp_load(target, storage_reader=GDSReader(tmp_path), planner=planner)
    assert target["a"].eq(1).all()
    assert target["new"].eq(5).all()
