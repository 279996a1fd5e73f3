"""Settings of torch that a trainer may have on do not change what is saved and loaded.

Method: saves and loads under each setting, by ours and by DCP's own storage, of the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.serialization import config

from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.storage import PAIRS, Storage, load, pair_name, save


@contextmanager
def crc32_off() -> Iterator[None]:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


@contextmanager
def storage_alignment(alignment: int) -> Iterator[None]:
    before = config.save.storage_alignment
    config.save.storage_alignment = alignment
    try:
        yield
    finally:
        config.save.storage_alignment = before


@contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def load_endianness() -> Iterator[None]:
    """What torch assumes of archives that do not name their byte order; those of today do."""
    set_endianness: Any = torch.serialization.set_default_load_endianness
    set_endianness(torch.serialization.LoadEndianness.LITTLE)
    try:
        yield
    finally:
        set_endianness(None)


SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "crc32-off": crc32_off,
    "storage-alignment-4096": lambda: storage_alignment(4096),
    "storage-alignment-1": lambda: storage_alignment(1),
    "default-dtype": default_dtype,
    # As "cuda" is on a node that has it: a tensor made without a device is not in host memory.
    "default-device-meta": lambda: torch.device("meta"),
    "deterministic": deterministic,
    "load-endianness": load_endianness,
    "inference-mode": torch.inference_mode,
    "no-grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
}
SHAPES = {"scalar": (), "small": (9, 5), "large": (700_001,), "empty": (0, 5)}


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings(setting: str, pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    state = {name: dense_tensor(shape, torch.float32) for name, shape in SHAPES.items()}
    target = {name: filled_tensor(shape, torch.float32) for name, shape in SHAPES.items()}
    with SETTINGS[setting]():
        save({**state, "n": 3}, tmp_path, saver)
        load(dict(target), tmp_path, loader)
    assert {name: raw(tensor) for name, tensor in target.items()} == {
        name: raw(tensor) for name, tensor in state.items()
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_saved_under_a_setting_and_loaded_without(setting: str, tmp_path: Path) -> None:
    state = {name: dense_tensor(shape, torch.bfloat16) for name, shape in SHAPES.items()}
    with SETTINGS[setting]():
        save(dict(state), tmp_path)
    target = {name: filled_tensor(shape, torch.bfloat16) for name, shape in SHAPES.items()}
    load(dict(target), tmp_path)
    assert {name: raw(tensor) for name, tensor in target.items()} == {
        name: raw(tensor) for name, tensor in state.items()
    }
