"""Twenty thousand tensors of 4 KiB are saved, loaded, and each is where it should be.

Method: one state of small tensors with memory of their own, whose values name them; and the shard
file's length, which shows that small tensors are not padded to blocks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoint.storage import OURS, STOCK, Storage, load, save

COUNT = 20_000
ELEMENTS = 512
# Head and tail of an archive, with some room; a block for each tensor would be 4096 more.
ENVELOPE_MAX = 2048


def state() -> dict[str, torch.Tensor]:
    return {f"layer{n // 8}.w{n}": torch.full((ELEMENTS,), n) for n in range(COUNT)}


@pytest.mark.parametrize(
    "loader", [OURS, pytest.param(STOCK, marks=pytest.mark.slow)], ids=lambda storage: storage.name
)
def test_round_trip(loader: Storage, tmp_path: Path) -> None:
    saved = state()
    save(dict(saved), tmp_path)
    (file,) = tmp_path.glob("*.distcp")
    payload = COUNT * ELEMENTS * 8
    assert file.stat().st_size < payload + COUNT * ENVELOPE_MAX + (1 << 20)
    targets = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    load(dict(targets), tmp_path, loader)
    assert all(torch.equal(targets[name], tensor) for name, tensor in saved.items())


@pytest.mark.slow
def test_from_stock(tmp_path: Path) -> None:
    saved = state()
    save(dict(saved), tmp_path, STOCK)
    targets = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    load(dict(targets), tmp_path)
    assert all(torch.equal(targets[name], tensor) for name, tensor in saved.items())
