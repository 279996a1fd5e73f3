"""Buffered engine: it does what every engine does, and it bounds what it leaves in the page cache.

Method: the engine suite on real files; files longer than the window, whose cached pages are
counted, on each kind of filesystem; write-back that fails or is not there, put under the real code.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcp_gds.benchmark.pagecache import cached_bytes
from dcp_gds.errors import TransferError
from dcp_gds.format.extent import Extent
from dcp_gds.io import writeback
from dcp_gds.io.buffered import WINDOW_BYTES, BufferedEngine
from dcp_gds.io.engine import Engine, EngineName, Operation, Transfer
from dcp_gds.io.shardfile import ShardFile, create_shard_file, open_shard_file
from tests.filesystems import Mounts
from tests.io.engine_suite import QUEUE_DEPTH, EngineTests
from tests.io.transfers import Memory, random_bytes, read, run, write

MIB = 1 << 20
# More than the window, and no multiple of anything.
LENGTH = WINDOW_BYTES + 19 * MIB + 5000
TRANSFER = 8 * MIB


class TestBuffered(EngineTests):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = BufferedEngine(queue_depth=QUEUE_DEPTH)
        assert engine.name is EngineName.BUFFERED
        yield engine
        engine.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = BufferedEngine(queue_depth=QUEUE_DEPTH)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def source() -> Memory:
    memory = Memory(LENGTH)
    memory.view[:LENGTH] = random_bytes(LENGTH)
    return memory


def transfers(
    operation: Operation,
    file: ShardFile,
    memory: Memory,
    *,
    step: int = TRANSFER,
    end: int = LENGTH,
) -> list[Transfer]:
    """Transfers of the memory from its start to `end`, each of `step` bytes."""
    return [
        Transfer(operation, file, memory.address + start, min(step, end - start), start)
        for start in range(0, end, step)
    ]


@pytest.mark.root
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backwards"])
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay-on-ext4"])
def test_ranges_that_share_folios_are_dropped_whole(kind: str, order: int, mounts: Mounts) -> None:
    path = mounts.directory(kind) / "file"
    ends = [3 * MIB + 1000, 7 * MIB + 5000, 7 * MIB + 5001, 16 * MIB]
    # One large write, which large folios of the page cache take, where the filesystem has them.
    path.write_bytes(random_bytes(ends[-1]))
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        assert cached_bytes(path) == ends[-1]
        for start, end in list(itertools.pairwise([0, *ends]))[::order]:
            writeback.drop_cached(file.fileno(), Extent(start, end - start))
    assert cached_bytes(path) == 0


# With the odd step, transfers share pages with their neighbours.
@pytest.mark.root
@pytest.mark.parametrize("step", [TRANSFER, TRANSFER + 1000])
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay-on-ext4"])
def test_a_write_leaves_less_than_the_window_and_a_sync_leaves_nothing(
    engine: Engine, mounts: Mounts, source: Memory, kind: str, step: int
) -> None:
    path = mounts.directory(kind) / "file"
    with create_shard_file(path, direct=False) as file:
        completions = run(engine, *transfers(Operation.WRITE, file, source, step=step))
        assert not any(completion.error for completion in completions)
        assert 0 < cached_bytes(path) <= WINDOW_BYTES
        file.sync()
        assert cached_bytes(path) == 0
    assert path.read_bytes() == source.view[:LENGTH]


@pytest.mark.root
@pytest.mark.parametrize("step", [TRANSFER, TRANSFER + 1000])
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay-on-ext4"])
def test_a_read_leaves_nothing(
    engine: Engine, mounts: Mounts, source: Memory, kind: str, step: int
) -> None:
    path = mounts.directory(kind) / "file"
    path.write_bytes(source.view[:LENGTH])
    with path.open("rb") as written:
        os.fdatasync(written.fileno())
        assert cached_bytes(path) > WINDOW_BYTES
        os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # The end is not read, so that pages behind what was asked for would stay.
    end = LENGTH - 8 * MIB
    target = Memory(end)
    with open_shard_file(path, direct=False) as file:
        run(engine, *transfers(Operation.READ, file, target, step=step, end=end))
    assert target.view[:end] == source.view[:end]
    assert cached_bytes(path) == 0


def failing(number: int, *, on_wait: bool) -> Callable[..., int]:
    """A sync_file_range that fails, at once or when it is to wait."""

    def sync_file_range(fd: int, offset: object, length: object, flags: ctypes.c_uint) -> int:
        if on_wait and flags.value & 4 == 0:
            return 0
        ctypes.set_errno(number)
        return -1

    return sync_file_range


def with_libc(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    """Put functions in the place of libc's; what is not named is not there, but for fstatfs."""
    libc = SimpleNamespace(fstatfs=ctypes.CDLL(None).fstatfs, **functions)
    monkeypatch.setattr(writeback, "_libc", libc)


@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.EPERM])
def test_without_sync_file_range_the_window_is_bounded_by_fdatasync(
    engine: Engine,
    tmp_path: Path,
    source: Memory,
    monkeypatch: pytest.MonkeyPatch,
    number: int | None,
) -> None:
    if number is None:
        with_libc(monkeypatch)
    else:
        with_libc(monkeypatch, sync_file_range=failing(number, on_wait=False))
    path = tmp_path / "file"
    with create_shard_file(path, direct=False) as file:
        completions = run(engine, *transfers(Operation.WRITE, file, source))
        assert not any(completion.error for completion in completions)
        assert cached_bytes(path) <= WINDOW_BYTES
    assert path.read_bytes() == source.view[:LENGTH]


def test_a_failed_write_back_fails_a_transfer_and_names_the_range(
    engine: Engine, tmp_path: Path, source: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libc(monkeypatch, sync_file_range=failing(errno.EIO, on_wait=True))
    with create_shard_file(tmp_path / "file", direct=False) as file:
        completions = run(engine, *transfers(Operation.WRITE, file, source))
    errors = [completion.error for completion in completions if completion.error is not None]
    assert errors
    assert all(isinstance(error, TransferError) for error in errors)
    first = errors[0]
    assert (first.errno, first.filename) == (errno.EIO, str(tmp_path / "file"))
    assert "write-back failed" in str(first)
    assert first.offset is not None
    assert first.offset < WINDOW_BYTES


def test_write_back_that_is_refused_at_once_fails_the_transfer(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libc(monkeypatch, sync_file_range=failing(errno.EIO, on_wait=False))
    # More failures than the window has room for: a write that failed gives its room back.
    length, count = 4 * MIB, 20
    memory = Memory(length)
    with create_shard_file(tmp_path / "file", direct=False) as file:
        every = [Transfer(Operation.WRITE, file, memory.address, length, 0) for _ in range(count)]
        completions = run(engine, *every)
    for completion in completions:
        assert completion.error is not None
        assert (completion.error.errno, completion.error.offset) == (errno.EIO, 0)


def test_interrupted_write_back_is_resumed(
    engine: Engine, tmp_path: Path, source: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()
    interrupt = failing(errno.EINTR, on_wait=False)

    def sync_file_range(*arguments: Any) -> int:
        return interrupt(*arguments) if next(calls) % 2 == 0 else 0

    with_libc(monkeypatch, sync_file_range=sync_file_range)
    with create_shard_file(tmp_path / "file", direct=False) as file:
        completions = run(engine, *transfers(Operation.WRITE, file, source))
    assert not any(completion.error for completion in completions)
    # Every range was started, and what did not fit the window was waited for.
    assert next(calls) > 2 * (LENGTH + LENGTH - WINDOW_BYTES) // (4 * MIB)


def test_short_transfers_are_resumed_and_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3000], offset))
    monkeypatch.setattr(os, "preadv", lambda fd, to, offset: preadv(fd, [to[0][:3000]], offset))
    data = random_bytes(10_000)
    source, target = Memory(len(data)), Memory(len(data))
    source.view[: len(data)] = data
    with create_shard_file(tmp_path / "file", direct=False) as file:
        (written,) = run(engine, write(file, source, length=len(data)))
        (found,) = run(engine, read(file, target, length=len(data)))
    for completion in (written, found):
        assert (completion.error, completion.retries) == (None, 3)
        assert (completion.moved, completion.crc32) == (len(data), zlib.crc32(data))
    assert target.view[: len(data)] == data


class Failing:
    """Fails its first calls with an errno, as the kernel would, then asks the kernel."""

    def __init__(self, call: Callable[..., int], *, number: int, times: int) -> None:
        self.calls = 0
        self._call = call
        self._number = number
        self._times = times

    def __call__(self, *arguments: Any) -> int:
        self.calls += 1
        if self.calls <= self._times:
            raise OSError(self._number, os.strerror(self._number))
        return self._call(*arguments)


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN])
@pytest.mark.parametrize("times", [1, 3])
def test_an_error_that_passes_is_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, number: int
) -> None:
    monkeypatch.setattr(os, "pwrite", Failing(os.pwrite, number=number, times=times))
    monkeypatch.setattr(os, "preadv", Failing(os.preadv, number=number, times=times))
    data = random_bytes(10_000)
    source, target = Memory(len(data)), Memory(len(data))
    source.view[: len(data)] = data
    with create_shard_file(tmp_path / "file", direct=False) as file:
        (written,) = run(engine, write(file, source, length=len(data)))
        (found,) = run(engine, read(file, target, length=len(data)))
    for completion in (written, found):
        assert (completion.error, completion.retries) == (None, times)
        assert (completion.moved, completion.crc32) == (len(data), zlib.crc32(data))
    assert target.view[: len(data)] == data


def test_on_a_synchronous_mount_a_failed_write_is_not_tried_again(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have told of what another thread wrote, which would then be taken for written."""
    pwrite = Failing(os.pwrite, number=errno.EIO, times=1)
    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: SimpleNamespace(f_flag=os.ST_SYNCHRONOUS))
    memory = Memory(4096)
    with create_shard_file(tmp_path / "file", direct=False) as file:
        (completion,) = run(engine, write(file, memory, length=4096))
    assert completion.error is not None
    assert (completion.error.errno, completion.error.done) == (errno.EIO, 0)
    assert (completion.retries, pwrite.calls) == (0, 1)
