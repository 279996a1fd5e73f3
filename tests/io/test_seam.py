"""A seam stream writes what was appended, in any order of completions: compared with the file."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp_gds.errors import TransferError
from dcp_gds.format.extent import Extent, round_up
from dcp_gds.io.engine import Completion, Operation, Transfer
from dcp_gds.io.seam import Reservation, SeamStream
from dcp_gds.io.shardfile import ShardFile, create_shard_file
from dcp_gds.io.staging import StagingPool
from dcp_gds.io.transferqueue import TransferQueue
from tests.io.stepengine import StepEngine

SLOT = 8192
BLOCK = 4096


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ShardFile]:
    with create_shard_file(tmp_path / "seam", direct=False) as file:
        yield file


def new_stream(
    file: ShardFile, engine: StepEngine, *, slots: int = 4
) -> tuple[SeamStream, TransferQueue, StagingPool]:
    pool = StagingPool(slot_bytes=SLOT, bytes_max=slots * SLOT)
    queue = TransferQueue(engine)
    return SeamStream(file, queue=queue, pool=pool), queue, pool


@pytest.mark.parametrize("seed", range(20))
def test_the_file_holds_what_was_appended(file: ShardFile, seed: int) -> None:
    draw = random.Random(seed)
    stream, queue, _ = new_stream(file, StepEngine(queue_depth=3, seed=seed))
    expected = bytearray()
    gaps: list[tuple[Reservation, bytes]] = []
    keep = []
    for _ in range(40):
        data = draw.randbytes(draw.choice([0, 1, 100, 5000, 20_000]))
        kind = draw.randrange(4)
        if kind == 0:
            stream.append(data)
        elif kind == 1:
            memory = ctypes.create_string_buffer(data, len(data))
            stream.append_memory(address=ctypes.addressof(memory), length=len(data))
            # It has been copied: what happens to it now does not matter.
            ctypes.memset(memory, 0xEE, len(data))
        elif kind == 2:
            # A slot with a gap is not written, so a small pool allows few of them.
            data = data[:100]
            gaps.append((stream.reserve(len(data)), data))
            while len(gaps) > 1:
                reservation, late = gaps.pop(0)
                reservation.fill(late)
        else:
            end = round_up(len(expected) + len(data), alignment=BLOCK)
            stream.pad_to(end)
            expected += bytes(end - len(expected))
            body = Extent(end, 2 * BLOCK)
            memory = ctypes.create_string_buffer(bytes([draw.randrange(256)]) * body.length)
            keep.append(memory)
            stream.skip(body)
            transfer = Transfer(
                Operation.WRITE, file, ctypes.addressof(memory), body.length, body.offset
            )
            queue.submit(transfer, lambda _: None)
            data = memory.raw[: body.length]
        expected += data
    for reservation, late in gaps:
        reservation.fill(late)
    end = round_up(len(expected), alignment=BLOCK)
    stream.pad_to(end)
    stream.finish()
    queue.drain()
    assert file.path.read_bytes() == bytes(expected).ljust(end, b"\0")
    assert queue.moved == end


def test_a_gap_holds_back_its_slot_only(file: ShardFile) -> None:
    engine = StepEngine(queue_depth=8)
    stream, queue, _ = new_stream(file, engine)
    reservation = stream.reserve(10)
    stream.pad_to(SLOT)
    stream.append(b"x" * SLOT)
    queue.drain()
    assert [transfer.offset for transfer in engine.done] == [SLOT]
    reservation.fill(b"0123456789")
    queue.drain()
    assert [transfer.offset for transfer in engine.done] == [SLOT, 0]


def test_a_gap_may_cross_slots(file: ShardFile) -> None:
    stream, queue, _ = new_stream(file, StepEngine(queue_depth=8))
    stream.append(b"a" * (SLOT - 3))
    reservation = stream.reserve(8)
    stream.pad_to(2 * SLOT)
    reservation.fill(b"01234567")
    stream.finish()
    queue.drain()
    assert file.path.read_bytes()[SLOT - 4 : SLOT + 6] == b"a01234567\0"


def test_slots_are_bounded(file: ShardFile) -> None:
    stream, queue, pool = new_stream(file, StepEngine(queue_depth=8), slots=2)
    stream.append(bytes(20 * SLOT))
    stream.finish()
    queue.drain()
    assert pool.peak_bytes == 2 * SLOT


def test_after_a_failure_all_slots_are_free_again(file: ShardFile) -> None:
    engine = StepEngine(queue_depth=2, fail_at=3)
    stream, queue, pool = new_stream(file, engine, slots=2)
    with pytest.raises(TransferError, match="injected"):
        stream.append(bytes(20 * SLOT))
    queue.abandon()
    stream.abandon()
    assert engine.in_flight == 0
    assert [pool.acquire() is not None for _ in range(3)] == [True, True, False]


def test_the_queue_runs_no_callback_after_a_failure(file: ShardFile) -> None:
    engine = StepEngine(queue_depth=4, fail_at=1)
    queue = TransferQueue(engine)
    memory = ctypes.create_string_buffer(16)
    done: list[int] = []

    def note(completion: Completion) -> None:
        done.append(completion.transfer.offset)

    for offset in range(4):
        queue.submit(Transfer(Operation.WRITE, file, ctypes.addressof(memory), 4, 4 * offset), note)
    with pytest.raises(TransferError):
        queue.drain()
    assert len(done) == 1
    assert engine.in_flight == 0


def test_the_queue_counts_what_was_moved(file: ShardFile) -> None:
    moved: list[int] = []
    queue = TransferQueue(StepEngine(queue_depth=1), on_moved=moved.append)
    memory = ctypes.create_string_buffer(100)
    for length in (1, 10, 100):
        queue.submit(
            Transfer(Operation.WRITE, file, ctypes.addressof(memory), length, 0), lambda _: None
        )
    queue.drain()
    assert moved == [1, 10, 100]
    assert queue.moved == 111
    assert not queue.reap()
