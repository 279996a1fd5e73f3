"""Bare: the least that moves bytes between aligned memory and a file, by pwrite and pread.

It shares no code with the engines: what is measured must not be its own measure.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dcp_gds.benchmark.setting import Moved, Setting
from dcp_gds.errors import TransferError
from dcp_gds.io.fileerror import file_error

__all__ = ["BARE", "BareTool"]

BARE = "bare"


class BareTool:
    """Moves a file by threads, each with one block of memory of its own that is touched before."""

    name = BARE

    def write(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        """Make a file of `length` bytes, a multiple of the block, and sync it.

        Raises
        ------
        TransferError
            With errno; StorageFullError if there is no room.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL

        def put(fd: int, block: memoryview, offset: int) -> int:
            return os.pwrite(fd, block, offset)

        return self._move(path, setting, flags, put, length=length, direct=direct)

    def read(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        """Read the first `length` bytes of a file.

        Raises
        ------
        TransferError
            With errno, or if the file is shorter.
        """

        def get(fd: int, block: memoryview, offset: int) -> int:
            return os.preadv(fd, [block], offset)

        return self._move(path, setting, os.O_RDONLY, get, length=length, direct=direct)

    def _move(
        self,
        path: Path,
        setting: Setting,
        flags: int,
        transfer: Callable[[int, memoryview, int], int],
        *,
        length: int,
        direct: bool,
    ) -> Moved:
        """Open, move, sync and close, by the clock."""
        assert length % setting.block_bytes == 0
        offsets = itertools.count(0, setting.block_bytes)
        with _blocks(setting) as blocks, ThreadPoolExecutor(setting.depth) as threads:
            before = resource.getrusage(resource.RUSAGE_SELF)
            began = time.perf_counter()
            try:
                fd = os.open(path, flags | os.O_CLOEXEC | (os.O_DIRECT if direct else 0), 0o600)
                try:
                    if flags & os.O_CREAT:
                        os.posix_fallocate(fd, 0, length)
                    # Whoever is free takes the next block: a count is one step of the interpreter.
                    works = [
                        threads.submit(
                            _move_blocks,
                            offsets,
                            partial(transfer, fd),
                            path,
                            block=block,
                            length=length,
                        )
                        for block in blocks
                    ]
                    for work in works:
                        work.result()
                    if flags & os.O_CREAT:
                        os.fsync(fd)
                finally:
                    os.close(fd)
            except TransferError:
                raise
            except OSError as error:
                raise file_error(error, path) from error
            seconds = time.perf_counter() - began
            after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Moved(length, seconds, cpu_s)


def _move_blocks(
    offsets: Iterator[int],
    transfer: Callable[[memoryview, int], int],
    path: Path,
    *,
    block: memoryview,
    length: int,
) -> None:
    """One thread: the next block again and again."""
    while (offset := next(offsets)) < length:
        done = 0
        while done < len(block):
            step = transfer(block[done:], offset + done)
            if step == 0:
                raise TransferError(errno.EIO, "unexpected end of file", path, offset=offset)
            done += step


@contextmanager
def _blocks(setting: Setting) -> Iterator[list[memoryview]]:
    """As many aligned blocks as the depth, with bytes that no drive can compress."""
    with mmap.mmap(-1, setting.block_bytes * setting.depth) as memory:
        view = memoryview(memory)
        noise = os.urandom(min(setting.block_bytes, 1 << 20))
        for start in range(0, len(view), len(noise)):
            view[start : start + len(noise)] = noise
        blocks = [
            view[index * setting.block_bytes : (index + 1) * setting.block_bytes]
            for index in range(setting.depth)
        ]
        try:
            yield blocks
        finally:
            for block in blocks:
                block.release()
            view.release()
