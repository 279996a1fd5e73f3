"""A checkpoint whose directory has links leads nobody out of it, neither to read nor to remove.

Method: a shard file is moved out of the checkpoint, a link put where it can be reached through, and
the metadata rewritten to name it so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict
from dcp_gds.errors import CorruptCheckpointError
from tests.checkpoint.refusal import refused
from tests.checkpoint.shardfiles import rewrite_metadata
from tests.checkpoint.storage import STOCK, load, save


@pytest.fixture
def led_out(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint that names a file behind a linked directory, and that file."""
    path, elsewhere = tmp_path / "step", tmp_path / "elsewhere"
    save({"x": torch.ones(9)}, path, STOCK)
    elsewhere.mkdir()
    (file,) = path.glob("*.distcp")
    outside = file.rename(elsewhere / "file")
    (path / "below").mkdir()
    (path / "below" / "link").symlink_to(elsewhere)

    def change(metadata: Metadata) -> None:
        for index, info in metadata.storage_data.items():
            named = dataclasses.replace(info, relative_path="below/link/file")
            metadata.storage_data[index] = named

    rewrite_metadata(path, change)
    return path, outside


def test_a_load_does_not_follow(led_out: tuple[Path, Path]) -> None:
    path, _ = led_out
    target = {"x": torch.zeros(9)}
    with refused(CorruptCheckpointError, "symbolic link", path / "below" / "link"):
        load(target, path)
    assert target["x"].eq(0).all()


def test_a_verification_does_not_follow(led_out: tuple[Path, Path]) -> None:
    path, _ = led_out
    report = verify_checkpoint(path)
    assert report.verdict is Verdict.DAMAGED
    assert "symbolic link" in str(report.damages[0])
    assert report.verified_bytes == 0


def test_an_overwrite_removes_nothing_behind_it(led_out: tuple[Path, Path]) -> None:
    path, outside = led_out
    save({"x": torch.ones(9)}, path, overwrite=True)
    assert outside.exists()
    load({"x": torch.zeros(9)}, path)


def test_a_directory_that_is_no_link_is_fine(led_out: tuple[Path, Path]) -> None:
    """A custom writer may well make directories."""
    path, outside = led_out
    (path / "below" / "link").unlink()
    (path / "below" / "link").mkdir()
    outside.rename(path / "below" / "link" / "file")
    target = {"x": torch.zeros(9)}
    load(target, path)
    assert target["x"].eq(1).all()
    assert verify_checkpoint(path).verdict is Verdict.UNCHECKED
