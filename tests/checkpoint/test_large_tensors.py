"""One tensor over 4 GiB, whose archive needs zip64, comes back whoever saves and whoever loads.

Method: 4 GiB and a little of int64 that counts, compared in place; the archive is checked by
Python's zipfile as well.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from tests.checkpoint.shardfiles import items_of
from tests.checkpoint.slicefile import SliceFile
from tests.checkpoint.storage import OURS, PAIRS, Storage, load, pair_name, save

pytestmark = pytest.mark.slow

COUNT = (1 << 29) + 3


def is_counting(tensor: torch.Tensor) -> bool:
    """Whether element n is n, checked in pieces that need little memory."""
    piece = 1 << 22
    return all(
        torch.equal(part, torch.arange(start * piece, start * piece + len(part)))
        for start, part in enumerate(torch.split(tensor, piece))
    )


@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_over_4_gib(pair: tuple[Storage, Storage], tmp_path: Path) -> None:
    saver, loader = pair
    state = {"x": torch.arange(COUNT), "behind": torch.arange(5)}
    save(dict(state), tmp_path, saver)
    state["x"].zero_()
    state["behind"].zero_()
    load(dict(state), tmp_path, loader)
    assert is_counting(state["x"])
    assert torch.equal(state["behind"], torch.arange(5))


def test_the_archive(tmp_path: Path) -> None:
    save({"x": torch.arange(COUNT)}, tmp_path, OURS)
    (item,) = items_of(tmp_path)
    with SliceFile(item.file, offset=item.offset, length=item.length) as data:
        archive = zipfile.ZipFile(data)
        assert archive.testzip() is None
        assert max(info.file_size for info in archive.infolist()) == COUNT * 8
