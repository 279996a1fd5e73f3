"""Native engine: any extent, address and alignment, any number of bytes, and what it refuses.

Method: hypothesis on a real file with direct I/O, for more alignments than the engine suite has;
os.pread's bytes and zlib are the oracle.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_gds import _core
from tests.filesystems import Mounts
from tests.io.engine_suite import Memory, random_bytes
from tests.io.native import opened, submit

PAGE = 4096
GIB = 1 << 30
BOUNCE = 64 << 10
DEPTH = 4
FILE_LENGTH = 300_001


@pytest.fixture
def engine() -> Iterator[_core.Engine]:
    engine = _core.Engine(workers=2, queue_depth=DEPTH, bounce_bytes=BOUNCE)
    yield engine
    engine.close()


@pytest.mark.root
class TestExtents:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
    @given(
        alignment=st.sampled_from([512, 4096, 65536]),
        shift=st.one_of(st.none(), st.integers(0, PAGE - 1)),
        offset=st.integers(0, FILE_LENGTH),
        length=st.integers(0, FILE_LENGTH),
    )
    def test_a_read_of_any_extent_equals_pread(
        self,
        engine: _core.Engine,
        mounts: Mounts,
        alignment: int,
        shift: int | None,
        offset: int,
        length: int,
    ) -> None:
        path = mounts.directory("ext4") / "file"
        path.write_bytes(random_bytes(FILE_LENGTH))
        expected = path.read_bytes()[offset : offset + length]
        shift = offset % PAGE if shift is None else shift
        memory = Memory(length)
        memory.view[:] = b"\xaa" * len(memory.view)
        with opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
            submit(
                engine, fd, memory, length=length, shift=shift, offset=offset, alignment=alignment
            )
            (completion,) = engine.reap()
        assert (completion.ticket, completion.errno) == (7, 0)
        # Less than asked for is the end of the file, and what came is good.
        assert completion.done == len(expected)
        assert completion.crc32 == zlib.crc32(expected)
        end = shift + len(expected)
        assert memory.view[shift:end] == expected
        assert set(memory.view[:shift]) | set(memory.view[shift + length :]) <= {0xAA}

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
    @given(
        alignment=st.sampled_from([512, 4096, 65536]),
        shift=st.one_of(st.just(0), st.integers(0, PAGE - 1)),
        first=st.integers(0, 3),
        blocks=st.integers(0, 9),
    )
    def test_a_write_from_any_address_is_in_the_file(
        self,
        engine: _core.Engine,
        mounts: Mounts,
        alignment: int,
        shift: int,
        first: int,
        blocks: int,
    ) -> None:
        path = mounts.directory("ext4") / "file"
        offset, length = first * alignment, blocks * alignment
        memory = Memory(length)
        memory.view[:] = random_bytes(len(memory.view))
        with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
            submit(
                engine,
                fd,
                memory,
                write=True,
                length=length,
                shift=shift,
                offset=offset,
                alignment=alignment,
            )
            (completion,) = engine.reap()
        expected = memory.view[shift : shift + length]
        assert (completion.errno, completion.done, completion.moved) == (0, length, length)
        assert completion.crc32 == zlib.crc32(expected)
        assert path.read_bytes()[offset:] == expected

    def test_the_kernels_own_refusal_is_kept(self, engine: _core.Engine, mounts: Mounts) -> None:
        path = mounts.directory("ext4") / "file"
        memory = Memory(PAGE)
        with opened(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
            # Said to take anything, which it does not.
            submit(engine, fd, memory, write=True, length=PAGE, shift=1, alignment=1)
            (completion,) = engine.reap()
        assert (completion.errno, completion.done) == (errno.EINVAL, 0)


def test_a_transfer_beyond_what_one_call_moves_is_cut_in_pieces(engine: _core.Engine) -> None:
    # /dev/null does not look at the bytes, so these pages are never touched. The kernel cuts a call
    # at 2 GiB less a page; leaving it to that would be a short transfer, counted as a retry.
    length = 5 * GIB + 12345
    memory = Memory(length)
    with opened(Path("/dev/null"), os.O_WRONLY) as fd:
        engine.submit(
            ticket=1,
            write=True,
            fd=fd,
            address=memory.address,
            length=length,
            offset=0,
            alignment=1,
            checksum=False,
        )
        (completion,) = engine.reap()
    assert (completion.done, completion.moved, completion.retries) == (length, length, 0)


class TestArguments:
    @pytest.mark.parametrize(
        ("workers", "queue_depth", "bounce_bytes"),
        [(0, 1, BOUNCE), (1, 0, BOUNCE), (1, 1, 0), (1, 1, 2048), (1, 1, 3 * PAGE)],
    )
    def test_an_impossible_engine_is_refused(
        self, workers: int, queue_depth: int, bounce_bytes: int
    ) -> None:
        with pytest.raises(ValueError, match="must be"):
            _core.Engine(workers=workers, queue_depth=queue_depth, bounce_bytes=bounce_bytes)

    @pytest.mark.parametrize("alignment", [0, 3, 2 * BOUNCE])
    def test_an_impossible_alignment_is_refused(self, engine: _core.Engine, alignment: int) -> None:
        with pytest.raises(ValueError, match="alignment must be"):
            submit(engine, 0, Memory(0), length=0, alignment=alignment)
        assert engine.in_flight == 0

    def test_an_offset_beyond_any_file_is_refused(self, engine: _core.Engine) -> None:
        with opened(Path("/dev/null"), os.O_RDWR) as fd:
            submit(engine, fd, Memory(PAGE), length=PAGE, offset=2**63 - PAGE)
            (completion,) = engine.reap()
        assert completion.errno == errno.EINVAL

    def test_tickets_come_back_whatever_they_are(self, engine: _core.Engine) -> None:
        memory = Memory(1)
        tickets = [0, 2**63, 2**64 - 1]
        for ticket in tickets:
            engine.submit(
                ticket=ticket,
                write=False,
                fd=-1,
                address=memory.address,
                length=0,
                offset=0,
                alignment=1,
                checksum=True,
            )
        completions: list[_core.Completion] = []
        while engine.in_flight:
            completions += engine.reap()
        assert sorted(completion.ticket for completion in completions) == tickets
        # An empty transfer needs no file.
        assert {(done.errno, done.crc32) for done in completions} == {(0, 0)}
