"""Transfers: memory, reads and writes of it, and how tests of engines carry them out."""

from __future__ import annotations

import ctypes
import mmap
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcp_gds.io.engine import Completion, Engine, Operation, Transfer
from dcp_gds.io.shardfile import ShardFile

__all__ = ["Memory", "file_size_limit", "half_mapped", "random_bytes", "read", "run", "write"]


class Memory:
    """Page-aligned memory of its own mapping, with room to shift an address by up to a page."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._mapping = mmap.mmap(-1, length + mmap.PAGESIZE)
        self.view = memoryview(self._mapping)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))


def run(engine: Engine, *transfers: Transfer) -> list[Completion]:
    """Carry out transfers, as many at a time as the engine takes; completions in the same order."""
    completions: list[Completion] = []
    for transfer in transfers:
        if engine.in_flight == engine.queue_depth:
            completions += engine.reap()
        engine.submit(transfer)
    completions += engine.drain()
    by_transfer = {id(completion.transfer): completion for completion in completions}
    assert len(completions) == len(by_transfer) == len(transfers)
    return [by_transfer[id(transfer)] for transfer in transfers]


def random_bytes(length: int, *, seed: int = 0) -> bytes:
    """Bytes that look random and are the same every time."""
    return random.Random(seed).randbytes(length)


@contextmanager
def file_size_limit(length: int) -> Iterator[None]:
    """No file of this process grows beyond `length`: the kernel shortens a write, then fails it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def half_mapped(path: Path, *, length: int) -> Iterator[tuple[ShardFile, int]]:
    """This process's memory as a file, and where `length` bytes of it lie, half of them.

    The other half is mapped from behind the end of a file, where the kernel answers EIO.
    """
    with path.open("w+b") as file:
        file.truncate(length)
        mapping = mmap.mmap(file.fileno(), length)
        file.truncate(length // 2)
    first = ctypes.c_char.from_buffer(mapping)
    memory = Path("/proc/self/mem")
    try:
        with memory.open("r+b", buffering=0) as device:
            file_of_memory = ShardFile(memory, device.fileno(), direct=False, alignment=1)
            yield file_of_memory, ctypes.addressof(first)
    finally:
        del first
        mapping.close()


def write(
    file: ShardFile, memory: Memory, *, length: int, shift: int = 0, offset: int = 0
) -> Transfer:
    """A write with checksum of memory from `shift` on."""
    return Transfer(Operation.WRITE, file, memory.address + shift, length, offset, checksum=True)


def read(
    file: ShardFile, memory: Memory, *, length: int, shift: int = 0, offset: int = 0
) -> Transfer:
    """A read with checksum to memory from `shift` on."""
    return Transfer(Operation.READ, file, memory.address + shift, length, offset, checksum=True)
