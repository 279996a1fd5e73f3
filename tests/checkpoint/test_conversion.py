"""DCP's converters work on our checkpoints, and whole checkpoints load without a state to fill.

Method: `dcp_to_torch_save`, `torch_save_to_dcp` and loads into an empty state, all and by keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict_loader import (
    _load_state_dict,
    _load_state_dict_from_keys,
)

from tests.checkpoint.rawbytes import dense_tensor
from tests.checkpoint.storage import OURS, Storage, load, save
from tests.checkpoint.test_planners import comparable


def nested() -> dict[str, Any]:
    return {
        "model": {
            "w": dense_tensor((5, 3), torch.float32),
            "b": dense_tensor((3,), torch.bfloat16),
            "mask": dense_tensor((2, 2), torch.bool),
        },
        "optimizer": {"steps": [torch.tensor(3.0), torch.tensor(4.0)], "lr": 0.5},
        "epoch": 3,
    }


def empty_load(path: Path, storage: Storage) -> dict[str, Any]:
    """Load all of a checkpoint into an empty state, as the converters do."""
    state: dict[str, Any] = {}
    _load_state_dict(
        state,
        storage_reader=storage.reader(path),
        planner=_EmptyStateDictLoadPlanner(),  # type: ignore[no-untyped-call]  # torch has no types
        no_dist=True,
    )
    return state


def test_dcp_to_torch_save(tmp_path: Path) -> None:
    save(nested(), tmp_path / "dcp")
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "file.pt")
    assert comparable(torch.load(tmp_path / "file.pt")) == comparable(nested())


def test_torch_save_to_dcp(tmp_path: Path) -> None:
    torch.save(nested(), tmp_path / "file.pt")
    torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "dcp")
    assert comparable(empty_load(tmp_path / "dcp", OURS)) == comparable(nested())


def test_into_an_empty_state(tmp_path: Path) -> None:
    save(nested(), tmp_path)
    assert comparable(empty_load(tmp_path, OURS)) == comparable(nested())


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("model.w", {"model": ["w"]}),
        ({"epoch", "model.b"}, {"epoch": [], "model": ["b"]}),
        ("model", {"model": ["b", "mask", "w"]}),
    ],
    ids=["one", "two", "prefix"],
)
def test_by_keys(keys: str | set[str], found: dict[str, list[str]], tmp_path: Path) -> None:
    save(nested(), tmp_path)
    state = _load_state_dict_from_keys(keys, storage_reader=OURS.reader(tmp_path))
    inner = {key: sorted(value) if isinstance(value, dict) else [] for key, value in state.items()}
    assert inner == found
    for key in inner.get("model", []):
        assert comparable(state["model"][key]) == comparable(nested()["model"][key])


def test_converted_and_back(tmp_path: Path) -> None:
    save(nested(), tmp_path / "first")
    dcp_to_torch_save(tmp_path / "first", tmp_path / "file.pt")
    save(torch.load(tmp_path / "file.pt"), tmp_path / "second")
    target = nested()
    target["model"]["w"].zero_()
    load(target, tmp_path / "second")
    assert comparable(target) == comparable(nested())
