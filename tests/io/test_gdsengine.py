"""The GDS engine moves every byte by cuFile, and a fault under it is an error or no fault at all.

Method: the real kvikio on the simulated driver, in child processes; what is in the file is compared
with what was in the GPU's memory, and the simulator counts and records the driver's calls.
"""

from __future__ import annotations

import errno
import random
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcp_gds.errors import StorageFullError, TransferError
from dcp_gds.io.engine import EngineName, Operation, Transfer
from dcp_gds.io.shardfile import open_shard_file
from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine, run_in_child
from tests.gdssim.fault import Action, Fault
from tests.gdssim.simulator import Quantity, Simulator

BLOCK = 4096
MIB = 1 << 20
SLOT = 4 * MIB
# Around a block, a slot, and the seams of pieces.
LENGTHS = (0, BLOCK, 2 * BLOCK, MIB, SLOT - BLOCK, SLOT, SLOT + BLOCK, 2 * SLOT, 9 * MIB)
Test = Callable[[Simulator, str], None]


def engine_in(simulator: Simulator, **options: int) -> Any:
    """A simulated engine; its module imports kvikio, which only a child may do."""
    from tests.io.simengine import sim_engine

    return sim_engine(simulator, **options)


def file_at(path: str, *, length: int) -> Any:
    from tests.io.simengine import new_file

    return new_file(path, length=length)


def check_monitor(simulator: Simulator, path: str) -> None:
    """Every byte is counted under GDS, none of them in an unaligned transfer or in host memory."""
    from dcp_gds.io.gds import GdsCounts, GdsMonitor

    monitor = GdsMonitor()
    with engine_in(simulator) as it:
        assert (it.engine.name, it.engine.queue_depth) == (EngineName.GDS, 4)
        for length in LENGTHS:
            buffer, data = it.random(length)
            with file_at(f"{path}-{length}", length=max(length, 1)) as file:
                done = it.write(file, buffer, length=length)
                assert (done.error, done.crc32) == (None, zlib.crc32(data))
                assert (done.moved, done.retries) == (length, 0)
                assert file.path.read_bytes()[:length] == data
                target = it.buffer(bytes(length))
                done = it.read(file, target, length=length)
                assert (done.error, done.crc32) == (None, zlib.crc32(data))
                assert target.read()[:length] == data
    assert monitor.counts() == GdsCounts(cufile=2 * sum(LENGTHS), posix=0)
    monitor.close()
    for function in ("cuFileWrite", "cuFileRead"):
        assert simulator.calls(f"{function}.unaligned") == 0
        assert simulator.calls(f"{function}.unregistered") == 0
    assert simulator.meter(Quantity.HOST_REGISTERED).peak == 0
    assert simulator.meter(Quantity.HOST_ALLOCATED).peak == 0


def check_addresses(simulator: Simulator, path: str) -> None:
    """GPU memory at any address can be written, and read to, by whole blocks of the file."""
    with engine_in(simulator) as it:
        length = SLOT + BLOCK
        buffer, data = it.random(length + BLOCK)
        for shift in (1, 2, 64, 512, BLOCK - 1):
            with file_at(f"{path}-{shift}", length=length) as file:
                done = it.write(file, buffer, length=length, shift=shift)
                expected = data[shift : shift + length]
                assert (done.error, done.crc32) == (None, zlib.crc32(expected))
                assert file.path.read_bytes() == expected
    assert simulator.calls("cuFileWrite.unaligned") == 0


def check_reads(simulator: Simulator, path: str) -> None:
    """Any extent can be read to any address, and nothing beside it is touched."""
    rng = random.Random(1)
    data = rng.randbytes(2 * SLOT + 3 * BLOCK + 100)
    Path(path).write_bytes(data)
    with engine_in(simulator) as it, open_shard_file(Path(path), direct=True) as file:
        edges = [(0, len(data)), (SLOT - 1, 2), (SLOT - 1, SLOT + 1), (BLOCK - 1, 2 * SLOT)]
        drawn = [(rng.randrange(len(data)), rng.randrange(SLOT + BLOCK)) for _ in range(40)]
        for offset, wanted in edges + drawn:
            length = min(wanted, len(data) - offset)
            shift = rng.randrange(BLOCK)
            target = it.buffer(b"\xaa" * (length + 2 * BLOCK))
            done = it.read(file, target, length=length, shift=shift, offset=offset)
            expected = data[offset : offset + length]
            assert (done.error, done.crc32) == (None, zlib.crc32(expected)), (offset, length)
            around = b"\xaa" * shift, b"\xaa" * (2 * BLOCK - shift)
            assert target.read() == around[0] + expected + around[1]
            target.free()
    assert simulator.calls("cuFileRead.unaligned") == 0


def check_end_of_file(simulator: Simulator, path: str) -> None:
    """A read past the end fails, and says how far it came."""
    data = random.Random(2).randbytes(10_000)
    Path(path).write_bytes(data)
    with engine_in(simulator) as it, open_shard_file(Path(path), direct=True) as file:
        for offset, done in ((0, 10_000), (5000, 5000), (10_000, 0), (MIB, 0)):
            target = it.buffer(bytes(20_000))
            completion = it.read(file, target, length=20_000, offset=offset)
            error = completion.error
            assert isinstance(error, TransferError)
            assert (error.errno, error.strerror) == (errno.EIO, "unexpected end of file")
            assert (error.filename, error.offset) == (path, offset)
            assert (error.length, error.done) == (20_000, done)
            assert (completion.crc32, completion.retries) == (None, 0)
            assert target.read()[:done] == data[offset : offset + done]


def check_queue(simulator: Simulator, path: str) -> None:
    """Several pieces are in flight, on threads that have the GPU current, and no more than fit."""
    with engine_in(simulator, slots_max=3) as it:
        buffer, data = it.random(6 * SLOT)
        with file_at(path, length=6 * SLOT) as file:
            simulator.inject(Fault(function="cuFileWrite", count=3, action=Action.HOLD))
            for index in range(4):
                address, offset = buffer.address + index * SLOT, index * SLOT
                it.engine.submit(Transfer(Operation.WRITE, file, address, SLOT, offset))
                assert it.engine.in_flight == index + 1
            with pytest.raises(RuntimeError, match="reap first"):
                it.engine.submit(Transfer(Operation.WRITE, file, buffer.address, SLOT, 0))
            simulator.await_held("cuFileWrite", count=3)
            simulator.release()
            done = it.engine.drain()
            assert len(done) == 4
            assert [(each.error, each.crc32) for each in done] == [(None, None)] * 4
            assert it.engine.drain() == it.engine.reap() == []
            assert file.path.read_bytes()[: 4 * SLOT] == data[: 4 * SLOT]
        writes = simulator.records("cuFileWrite")
        assert len({call.thread for call in writes}) == 3
        assert threading.get_native_id() not in {call.thread for call in writes}
        assert {call.device for call in simulator.records() if "cuFile" in call.function} == {0}
        # One handle serves a file however many transfers it has.
        assert simulator.calls("cuFileHandleRegister") == 1


def check_close(simulator: Simulator, path: str) -> None:
    """Closing finishes what is in flight, ends the threads, and gives everything back."""
    with engine_in(simulator) as it:
        buffer, data = it.random(SLOT)
        with file_at(path, length=SLOT) as file:
            it.engine.submit(Transfer(Operation.WRITE, file, buffer.address, SLOT, 0))
            it.engine.close()
            it.engine.close()
            assert file.path.read_bytes() == data
            assert it.engine.in_flight == 0
            with pytest.raises(RuntimeError):
                it.engine.submit(Transfer(Operation.WRITE, file, buffer.address, SLOT, 0))
        assert simulator.calls("cuFileHandleDeregister") == 1
        assert not [each for each in threading.enumerate() if "dcp_gds" in each.name]
        buffer.free()
        it.window.close()
        it.window.close()
    assert simulator.meter(Quantity.CUFILE_REGISTERED).now == 0
    assert simulator.meter(Quantity.DEVICE).now == 0
    # The driver is the whole process's.
    assert simulator.calls("cuFileDriverClose") == simulator.calls("cuFileDriverClose_v2") == 0
    assert [name for name in SETTERS if simulator.calls(name)] == []


SETTERS = (
    "cuFileDriverSetPollMode",
    "cuFileDriverSetMaxCacheSize",
    "cuFileDriverSetMaxPinnedMemSize",
    "cuFileDriverSetMaxDirectIOSize",
)


def check_misuse(simulator: Simulator, path: str) -> None:
    """A closed file and one that may only be read are refused; others are not touched."""
    with engine_in(simulator) as it:
        buffer, data = it.random(BLOCK)
        file = file_at(path, length=BLOCK)
        with open_shard_file(Path(path), direct=True) as read_only:
            error = it.write(read_only, buffer, length=BLOCK).error
            assert isinstance(error, TransferError)
            assert (error.errno, error.done) == (errno.EBADF, 0)
        assert it.write(file, buffer, length=BLOCK).error is None
        assert file.path.read_bytes() == data
        file.close()
        for operation in Operation:
            error = it.move(operation, file, buffer.address, BLOCK, 0).error
            assert isinstance(error, TransferError)
            assert (error.errno, error.filename) == (errno.EBADF, path)


def check_full(simulator: Simulator, path: str) -> None:
    """A full disk is told as such."""
    with engine_in(simulator) as it, file_at(path, length=2 * SLOT) as file:
        buffer, _ = it.random(2 * SLOT)
        simulator.inject(Fault(function="cuFileWrite", skip=1, error=errno.ENOSPC))
        error = it.write(file, buffer, length=2 * SLOT).error
        assert isinstance(error, StorageFullError)
        assert (error.errno, error.offset, error.length) == (errno.ENOSPC, 0, 2 * SLOT)
        assert error.done == SLOT


@pytest.mark.parametrize(
    "test",
    [
        check_monitor,
        check_addresses,
        check_reads,
        check_end_of_file,
        check_queue,
        check_close,
        check_misuse,
        check_full,
    ],
)
def test_engine(gdssim: Libraries, tmp_path: Path, test: Test) -> None:
    run_in_child(Machine(libraries=gdssim), test, str(tmp_path / "file"))
