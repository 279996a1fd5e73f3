"""A load reads little more than it needs: its spans, the envelopes and two blocks for each chunk.

Method: groups of 1, 2 and 4 gloo ranks load a tensor of several checksum blocks, cut otherwise than
it was saved; the bytes asked for are compared with what the plan needs, counted by `spans`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Shard

from dcp_gds import GDSReader, GDSWriter
from tests.checkpoint.shardfiles import footer_of, items_end
from tests.checkpoint.spans import PlanKeeper, needs
from tests.checkpoint.storage import dcp_load, dcp_save
from tests.checkpoint.test_resharding import SIZES, cut
from tests.ranks import Ranks

FILESYSTEM_BLOCK = 4096
# 64 MiB and some rows: several checksum blocks for each of four ranks, and no even split.
LARGE_SHAPE = (16_399, 1024)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one rank's load needed and what it read."""

    span: int
    envelope: int
    chunks: int
    footers: int
    bytes_read: int
    equal: bool


def save_large(path: Path, dimension: int) -> None:
    whole = torch.arange(math.prod(LARGE_SHAPE), dtype=torch.int32).view(LARGE_SHAPE)
    with GDSWriter(path) as writer:
        dcp_save({"x": cut(whole, Shard(dimension))}, storage_writer=writer)


def load_large(path: Path, dimension: int, verify: bool) -> Reading:
    whole = torch.arange(math.prod(LARGE_SHAPE), dtype=torch.int32).view(LARGE_SHAPE)
    target = cut(torch.zeros_like(whole), Shard(dimension))
    planner = PlanKeeper()
    with GDSReader(path, verify=verify) as reader:
        metadata = reader.read_metadata()
        dcp_load({"x": target}, storage_reader=reader, planner=planner)
        report = reader.report
    assert report is not None
    needed = needs(planner.kept, metadata)
    files = {path / need.file for need in needed}
    return Reading(
        span=sum(need.span for need in needed),
        envelope=sum(need.envelope for need in needed),
        chunks=len(needed),
        # A verifying reader reads the footer, which follows the last item; to whole blocks.
        footers=sum(
            file.stat().st_size - items_end(file, metadata) + 2 * FILESYSTEM_BLOCK for file in files
        ),
        bytes_read=report.bytes_read,
        equal=torch.equal(target.to_local(), cut(whole, Shard(dimension)).to_local()),
    )


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"from-{size}")
def large(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    ranks: Callable[[int], Ranks],
) -> Path:
    """A checkpoint of one large tensor, cut by rows over as many ranks as the parameter says."""
    path = tmp_path_factory.mktemp("large")
    ranks(request.param).run(save_large, path, 0)
    return path


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "trust"])
@pytest.mark.parametrize("dimension", [0, 1], ids=["rows", "columns"])
@pytest.mark.parametrize("after", SIZES, ids=lambda size: f"on-{size}")
def test_bytes_read(
    large: Path, after: int, dimension: int, verify: bool, ranks: Callable[[int], Ranks]
) -> None:
    slack = 2 * (
        footer_of(next(large.glob("*.distcp"))).block_length if verify else FILESYSTEM_BLOCK
    )
    for reading in ranks(after).run(load_large, large, dimension, verify):
        assert reading.equal
        assert reading.bytes_read >= reading.span
        needed = reading.span + reading.envelope + reading.footers
        assert reading.bytes_read <= needed + reading.chunks * slack
