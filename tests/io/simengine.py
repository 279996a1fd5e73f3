"""Simulated engine: a GDS engine on the simulated driver, with memory of its GPU; for children."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcp_gds.io.cudadriver import CudaContext
from dcp_gds.io.engine import Completion, Operation, Transfer
from dcp_gds.io.gdsengine import DeviceChecksum, GdsEngine
from dcp_gds.io.gdswindow import SLOTS_DEFAULT, GdsWindow
from dcp_gds.io.shardfile import ShardFile, create_shard_file
from tests.gdssim.memory import SimBuffer, SimGpu
from tests.gdssim.simulator import Simulator
from tests.io.transfers import random_bytes

__all__ = ["SimEngine", "checksum_of", "new_file", "sim_engine"]


class SimEngine:
    """An engine, its window, and the simulator under them."""

    def __init__(self, simulator: Simulator, window: GdsWindow, engine: GdsEngine) -> None:
        self.simulator = simulator
        self.gpu = SimGpu(simulator)
        self.window = window
        self.engine = engine

    def buffer(self, data: bytes) -> SimBuffer:
        """GPU memory with that in it."""
        buffer = self.gpu.allocate(max(1, len(data)))
        buffer.write(data)
        return buffer

    def random(self, length: int, *, seed: int = 0) -> tuple[SimBuffer, bytes]:
        """GPU memory of random bytes, and the same bytes."""
        data = random_bytes(length, seed=seed)
        return self.buffer(data), data

    def write(
        self, file: ShardFile, buffer: SimBuffer, *, length: int, shift: int = 0, offset: int = 0
    ) -> Completion:
        """Write GPU memory from `shift` on."""
        return self.move(Operation.WRITE, file, buffer.address + shift, length, offset)

    def read(
        self, file: ShardFile, buffer: SimBuffer, *, length: int, shift: int = 0, offset: int = 0
    ) -> Completion:
        """Read to GPU memory from `shift` on."""
        return self.move(Operation.READ, file, buffer.address + shift, length, offset)

    def move(
        self, operation: Operation, file: ShardFile, address: int, length: int, offset: int
    ) -> Completion:
        """Carry out one transfer, with a checksum."""
        self.engine.submit(Transfer(operation, file, address, length, offset, checksum=True))
        (completion,) = self.engine.drain()
        return completion


@contextmanager
def sim_engine(
    simulator: Simulator, *, slots_max: int = SLOTS_DEFAULT, queue_depth: int = 4
) -> Iterator[SimEngine]:
    """Start an engine, and close it and its window."""
    window = GdsWindow(ordinal=0, slots_max=slots_max)
    engine = GdsEngine(window, queue_depth=queue_depth, checksum=checksum_of(window.context))
    try:
        yield SimEngine(simulator, window, engine)
    finally:
        engine.close()
        window.close()


def checksum_of(context: CudaContext) -> DeviceChecksum:
    """CRC-32 of GPU memory, computed by the host: the simulator runs no kernels."""
    return lambda address, length: zlib.crc32(context.download(address, length=length))


def new_file(path: str, *, length: int) -> ShardFile:
    """A new file, preallocated as shard files are."""
    file = create_shard_file(Path(path), direct=True)
    file.allocate(length)
    return file
