"""Verifying: a checkpoint to be damaged, and what its verification is expected to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict, VerifyReport
from dcp_gds.format.metadata import split_metadata
from tests.checkpoint.rawbytes import dense_tensor
from tests.checkpoint.shardfiles import Item, items_of
from tests.checkpoint.storage import OURS, STOCK, Storage, save

__all__ = [
    "both_kinds",
    "damaged",
    "item_named",
    "saved",
    "state",
    "token_of",
    "unreadable",
]

MIB = 1 << 20
both_kinds = pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)


def state() -> dict[str, Any]:
    """A large tensor of two checksum blocks, small ones, one that is packed, and byte items."""
    return {
        "large": dense_tensor((5 * MIB // 4,), torch.float32),
        "w": dense_tensor((30, 40), torch.float32),
        "packed": dense_tensor((64, 50), torch.int16)[:, ::2],
        "empty": torch.empty(0, 3),
        "step": 7,
        "names": ["a", "b"] * 500,
    }


def saved(path: Path, storage: Storage = OURS, **options: object) -> Path:
    """Save a state; the shard file."""
    # The shortest checksum block is longer than a transfer.
    save(state(), path, storage, **({"transfer_bytes": MIB} if storage is OURS else {}), **options)
    (file,) = path.glob("*.distcp")
    return file


def item_named(path: Path, fqn: str) -> Item:
    (item,) = (item for item in items_of(path) if item.index.fqn == fqn)
    return item


def damaged(path: Path, *texts: object, count: int = 1) -> VerifyReport:
    """Expect `count` findings, the first of which says all of `texts`."""
    report = verify_checkpoint(path)
    assert report.verdict is Verdict.DAMAGED
    assert report.damage_count == count, [str(damage) for damage in report.damages]
    for text in texts:
        assert str(text) in str(report.damages[0])
    return report


def unreadable(path: Path, *texts: object) -> None:
    report = verify_checkpoint(path)
    assert report.verdict is Verdict.UNREADABLE
    for text in texts:
        assert str(text) in report.unreadable[0]


def token_of(path: Path) -> str:
    _, trailer = split_metadata((path / ".metadata").read_bytes(), path=path)
    assert trailer is not None
    return trailer.token
