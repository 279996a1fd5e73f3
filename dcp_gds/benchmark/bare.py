"""Bare: the least that moves bytes between aligned memory and a file, by pwrite and pread.

It shares no code with the engines: what is measured must not be its own measure.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dcp_gds.benchmark.measure import timed
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
        with _blocks(setting) as blocks:

            def move() -> None:
                fd = os.open(path, flags | os.O_CLOEXEC | (os.O_DIRECT if direct else 0), 0o600)
                try:
                    if flags & os.O_CREAT:
                        os.posix_fallocate(fd, 0, length)
                    _move_all(partial(transfer, fd), path, blocks=blocks, length=length)
                    if flags & os.O_CREAT:
                        os.fsync(fd)
                finally:
                    os.close(fd)

            try:
                return Moved(length, timed(move))
            except TransferError:
                raise
            except OSError as error:
                raise file_error(error, path) from error


def _move_all(
    transfer: Callable[[memoryview, int], int],
    path: Path,
    *,
    blocks: Sequence[memoryview],
    length: int,
) -> None:
    """A thread for each block. None of them runs any more when this returns or raises."""
    # Whoever is free takes the next offset: a count is one step of the interpreter.
    offsets = itertools.count(0, len(blocks[0]))
    # Without it, the others would go on to the end of the file after an error or a Ctrl-C.
    ended = threading.Event()

    def move_blocks(block: memoryview) -> None:
        try:
            while not ended.is_set() and (offset := next(offsets)) < length:
                _move_block(transfer, path, block, offset=offset)
        finally:
            # Who is done knows that all offsets are taken.
            ended.set()

    with ThreadPoolExecutor(len(blocks)) as threads:
        try:
            for work in [threads.submit(move_blocks, block) for block in blocks]:
                work.result()
        finally:
            ended.set()


def _move_block(
    transfer: Callable[[memoryview, int], int], path: Path, block: memoryview, *, offset: int
) -> None:
    """One block, in as many steps as the kernel makes of it."""
    done = 0
    while done < len(block):
        # Released here: the traceback of an error would hold it, and the memory could not be freed.
        with block[done:] as rest:
            step = transfer(rest, offset + done)
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
