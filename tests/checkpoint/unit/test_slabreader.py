"""Slabs arrive right and no block is read twice: random boxes, any order of completions."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from dcp_gds.checkpoint.box import Box
from dcp_gds.checkpoint.loaditem import LoadItem, Place
from dcp_gds.checkpoint.loadtarget import LoadTarget
from dcp_gds.checkpoint.readsession import ReadSession
from dcp_gds.checkpoint.slabreader import SlabReader
from dcp_gds.format.archive import StoredTensor
from dcp_gds.format.extent import Extent
from dcp_gds.io.shardfile import ShardFile, open_shard_file
from dcp_gds.io.staging import StagingPool
from dcp_gds.io.transferqueue import TransferQueue
from tests.io.stepengine import StepEngine

BLOCK = 4096
SLOT = 16 * BLOCK


class Planner:
    """Gives one target and notes its commit."""

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.target


def load_item(whole: torch.Tensor, starts: list[int], sizes: list[int], offset: int) -> LoadItem:
    payload = Extent(offset, whole.nbytes)
    stored = StoredTensor(whole.dtype, tuple(whole.size()), whole.stride(), Extent(0, whole.nbytes))
    strides = tuple(stride * whole.itemsize for stride in whole.stride())
    first = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    place = Place(Box(tuple(sizes), strides, whole.itemsize), first)
    index = MetadataIndex("w")
    read_item = ReadItem(
        LoadItemType.TENSOR,
        index,
        torch.Size([0] * len(sizes)),
        index,
        torch.Size(starts),
        torch.Size(sizes),
    )
    return LoadItem(read_item, payload, payload, None, stored, place)


@pytest.mark.parametrize("seed", range(60))
def test_a_box_arrives_and_no_block_twice(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.randint(1, 40), draw.randint(1, 30), draw.choice([1, 7, 100, 1000])]
    whole = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    starts = [draw.randrange(size) for size in shape]
    sizes = [draw.randint(1, size - start) for size, start in zip(shape, starts, strict=True)]
    offset = 64 + 4 * draw.randrange(3000)
    path = tmp_path / "shard"
    content = bytes(offset) + whole.numpy().tobytes() + bytes(draw.randrange(9000))
    path.write_bytes(content)
    target = torch.zeros(sizes, dtype=torch.int32)
    item = load_item(whole, starts, sizes, offset)
    engine = StepEngine(queue_depth=draw.randint(1, 4), seed=seed)
    finished: list[bool] = []
    with open_shard_file(path, direct=False) as opened:
        # This file takes any offset: the alignment is what the reader has to keep by itself.
        file = cast(ShardFile, SimpleNamespace(path=path, fd=opened.fd, alignment=BLOCK))
        session = ReadSession(
            file,
            len(content),
            TransferQueue(engine),
            StagingPool(slot_bytes=SLOT, bytes_max=draw.randint(1, 4) * SLOT),
            cast(Any, Planner(target)),
            draw.choice([BLOCK, 4 * BLOCK, SLOT]),
            False,
            lambda fqn, data: None,
            lambda loaded: None,
        )
        load_target = LoadTarget(item, session.planner, strict_dtype=False)
        slabs = load_target.box.slabs(
            bytes_max=SLOT - 2 * BLOCK, gap_max=draw.choice([0, 100, 5000, SLOT])
        )
        reader = SlabReader(
            session,
            load_target,
            start=item.extent.offset,
            finish=lambda: finished.append(True),
        )
        reader.read(slabs)
        session.queue.drain()
    assert finished == [True]
    expected = whole
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        expected = expected.narrow(dim, start, size)
    assert torch.equal(target, expected)
    ranges = sorted((t.offset, t.offset + t.length) for t in engine.done)
    for (_, end), (start, _) in itertools.pairwise(ranges):
        assert start >= end
    assert all(start % BLOCK == 0 for start, _ in ranges)
    span = item.extent
    assert sum(end - start for start, end in ranges) <= span.length + 2 * BLOCK
