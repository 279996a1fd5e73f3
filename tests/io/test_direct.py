"""Direct engine: it does what every engine does, with direct I/O or without, past the page cache.

Method: the engine suite on files that are open for direct I/O and on files that are not, on each
kind of filesystem that honours it; nothing may be left in the page cache.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp_gds.benchmark.pagecache import cached_bytes
from dcp_gds.errors import TransferError
from dcp_gds.io.direct import DirectEngine
from dcp_gds.io.engine import Engine, EngineName, Operation, Transfer
from dcp_gds.io.shardfile import create_shard_file, open_shard_file
from tests.filesystems import DIRECT_KINDS, Mounts
from tests.io.engine_suite import QUEUE_DEPTH, EngineTests, Memory, random_bytes, run
from tests.io.native import engine_threads

MIB = 1 << 20


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = DirectEngine(queue_depth=QUEUE_DEPTH)
    yield engine
    engine.close()


class _DirectEngineTests(EngineTests):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        engine = DirectEngine(queue_depth=QUEUE_DEPTH)
        assert engine.name is EngineName.DIRECT
        yield engine
        engine.close()
        assert engine_threads() == []


@pytest.mark.root
class TestDirectOnExt4(_DirectEngineTests):
    direct = True

    @pytest.fixture
    def directory(self, mounts: Mounts) -> Path:
        return mounts.directory("ext4")


@pytest.mark.root
class TestDirectOn4KSectors(_DirectEngineTests):
    direct = True

    @pytest.fixture
    def directory(self, mounts: Mounts) -> Path:
        return mounts.directory("xfs-4k-sectors")


class TestDirectEngineWithoutDirectIO(_DirectEngineTests):
    direct = False


@pytest.mark.root
@pytest.mark.parametrize("shift", [0, 64])
@pytest.mark.parametrize("kind", DIRECT_KINDS)
def test_nothing_enters_the_page_cache(
    engine: Engine, mounts: Mounts, kind: str, shift: int
) -> None:
    path = mounts.directory(kind) / "file"
    memory = Memory(4 * MIB)
    memory.view[:] = random_bytes(len(memory.view))
    expected = bytes(memory.view[shift : shift + 4 * MIB])
    write = Operation.WRITE
    with create_shard_file(path, direct=True) as file:
        (written,) = run(engine, Transfer(write, file, memory.address + shift, 4 * MIB, 0))
        assert written.error is None
        assert cached_bytes(path) == 0
    memory.view[:] = bytes(len(memory.view))
    with open_shard_file(path, direct=True) as file:
        offset, length = 1000, 3 * MIB
        (read,) = run(engine, Transfer(Operation.READ, file, memory.address, length, offset))
        assert read.error is None
        assert cached_bytes(path) == 0
    assert memory.view[:length] == expected[offset : offset + length]


@pytest.mark.root
def test_a_write_that_would_need_rounding_is_refused_and_nothing_is_touched(
    engine: Engine, mounts: Mounts
) -> None:
    memory = Memory(8192)
    with create_shard_file(mounts.directory("ext4") / "file", direct=True) as file:
        file.path.write_bytes(before := random_bytes(8192))
        for offset, length in ((512, 4096), (4096, 512), (4096, 4097)):
            transfer = Transfer(Operation.WRITE, file, memory.address, length, offset)
            (completion,) = run(engine, transfer)
            assert isinstance(completion.error, TransferError)
            assert (completion.error.errno, completion.error.done) == (errno.EINVAL, 0)
            assert f"bytes [{offset}, {offset + length})" in str(completion.error)
        assert file.path.read_bytes() == before


def test_a_deep_queue_does_not_start_a_thread_for_each_transfer() -> None:
    engine = DirectEngine(queue_depth=256)
    try:
        assert engine.queue_depth == 256
        assert len(engine_threads()) == 32
    finally:
        engine.close()


def test_a_refused_submission_leaves_nothing_behind(engine: Engine, tmp_path: Path) -> None:
    with create_shard_file(tmp_path / "file", direct=False) as file:
        with pytest.raises(TypeError):
            engine.submit(Transfer(Operation.WRITE, file, -1, 4096, 0))
        assert engine.in_flight == 0
        assert engine.drain() == []
