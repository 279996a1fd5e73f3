"""Engine suite: what every engine does, as tests that a class per engine inherits.

Method: real files and real memory around every boundary of blocks, pages and pieces, compared with
slices and zlib; faults come from the kernel: a full device, a size limit, unmapped memory, a
closed file.
"""

from __future__ import annotations

import errno
import random
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_gds.errors import TransferError
from dcp_gds.format.extent import round_up
from dcp_gds.io.engine import Engine, Operation, Transfer
from dcp_gds.io.shardfile import ShardFile, create_shard_file, open_shard_file
from tests.io.transfers import Memory, file_size_limit, half_mapped, random_bytes, read, run, write

__all__ = ["QUEUE_DEPTH", "EngineTests", "Memory", "random_bytes", "run"]

MIB = 1 << 20
BLOCK = 4096
# Around a sector, a page, and the sizes at which engines change their ways or cut in pieces.
LENGTHS = (
    *(0, 1, 511, 512, BLOCK - 1, BLOCK, BLOCK + 1, 65535, 65536, 65537),
    *(MIB - 1, MIB, MIB + 1, 4 * MIB + BLOCK + 1, 9 * MIB),
)
QUEUE_DEPTH = 4


class EngineTests:
    """Tests of one engine; a subclass gives the engine, and says how its files are opened."""

    direct: ClassVar[bool] = False

    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        """An engine of queue depth `QUEUE_DEPTH`, closed at the end."""
        raise NotImplementedError

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """Where files are made."""
        return tmp_path

    @pytest.fixture
    def file(self, directory: Path) -> Iterator[ShardFile]:
        """A new, empty file."""
        with create_shard_file(directory / "file", direct=self.direct) as file:
            yield file

    @pytest.mark.parametrize("length", LENGTHS)
    def test_what_was_written_is_in_the_file(
        self, engine: Engine, file: ShardFile, length: int
    ) -> None:
        length = round_up(length, alignment=file.alignment)
        memory = Memory(length)
        memory.view[:length] = data = random_bytes(length)
        (completion,) = run(engine, write(file, memory, length=length))
        assert completion.error is None
        assert completion.crc32 == zlib.crc32(data)
        assert completion.moved == length
        assert file.path.read_bytes() == data

    @pytest.mark.parametrize("length", LENGTHS)
    def test_what_was_read_is_in_memory(self, engine: Engine, directory: Path, length: int) -> None:
        (directory / "file").write_bytes(data := random_bytes(length))
        memory = Memory(length)
        with open_shard_file(directory / "file", direct=self.direct) as file:
            (completion,) = run(engine, read(file, memory, length=length))
            assert completion.error is None
            assert completion.crc32 == zlib.crc32(data)
            assert length <= completion.moved < length + 2 * file.alignment
        assert memory.view[:length] == data
        assert not any(memory.view[length:])

    def test_every_address_of_a_page_can_be_written_from(
        self, engine: Engine, file: ShardFile
    ) -> None:
        length = 2 * BLOCK
        shifts = range(0, BLOCK, 64)
        memory = Memory(length)
        memory.view[:] = random_bytes(len(memory.view))
        completions = run(
            engine,
            *(
                write(file, memory, length=length, shift=shift, offset=index * length)
                for index, shift in enumerate(shifts)
            ),
        )
        written = file.path.read_bytes()
        for index, (shift, completion) in enumerate(zip(shifts, completions, strict=True)):
            expected = memory.view[shift : shift + length]
            assert completion.error is None
            assert completion.crc32 == zlib.crc32(expected)
            assert written[index * length : (index + 1) * length] == expected, f"shift {shift}"

    def test_any_extent_can_be_read_to_any_address(self, engine: Engine, directory: Path) -> None:
        data = random_bytes(2 * MIB + 4 * BLOCK)
        (directory / "file").write_bytes(data)

        # A function of its own: hypothesis refuses a method that several classes inherit.
        @settings(max_examples=150)
        @given(
            shift=st.one_of(st.none(), st.integers(0, BLOCK - 1)),
            offset=st.integers(0, 3 * BLOCK + 100),
            length=st.one_of(st.integers(0, 3 * BLOCK), st.integers(0, 2 * MIB)),
        )
        def check(shift: int | None, offset: int, length: int) -> None:
            # None: congruent, so that the blocks in the middle need no copy.
            shift = offset % BLOCK if shift is None else shift
            memory = Memory(length)
            memory.view[:] = before = b"\xaa" * len(memory.view)
            transfer = read(file, memory, length=length, shift=shift, offset=offset)
            (completion,) = run(engine, transfer)
            expected = data[offset : offset + length]
            assert completion.error is None
            assert completion.crc32 == zlib.crc32(expected)
            # Nothing beside the extent's own memory was touched.
            assert memory.view == before[:shift] + expected + before[shift + length :]

        with open_shard_file(directory / "file", direct=self.direct) as file:
            check()

    def test_a_write_leaves_its_neighbours_alone(self, engine: Engine, file: ShardFile) -> None:
        data = bytearray(random_bytes(6 * BLOCK))
        file.path.write_bytes(data)
        memory = Memory(2 * BLOCK)
        memory.view[:] = random_bytes(len(memory.view), seed=1)
        transfer = write(file, memory, length=2 * BLOCK, shift=64, offset=3 * BLOCK)
        run(engine, transfer)
        data[3 * BLOCK : 5 * BLOCK] = memory.view[64 : 64 + 2 * BLOCK]
        assert file.path.read_bytes() == data

    def test_many_transfers_of_two_files_each_end_in_their_place(
        self, engine: Engine, directory: Path
    ) -> None:
        count, length = 64, 3 * BLOCK
        memory = Memory(count * length)
        memory.view[:] = random_bytes(len(memory.view))
        with (
            create_shard_file(directory / "even", direct=self.direct) as even,
            create_shard_file(directory / "odd", direct=self.direct) as odd,
        ):
            order = random.Random(3).sample(range(count), count)
            transfers = [
                write(
                    (even, odd)[index % 2],
                    memory,
                    length=length,
                    shift=index * length,
                    offset=index // 2 * length,
                )
                for index in order
            ]
            completions = run(engine, *transfers)
            assert [completion.transfer for completion in completions] == transfers
            assert not any(completion.error for completion in completions)
            for parity, file in enumerate((even, odd)):
                starts = range(parity * length, count * length, 2 * length)
                expected = b"".join(memory.view[start : start + length] for start in starts)
                assert file.path.read_bytes() == expected

    @pytest.mark.parametrize("operation", Operation)
    def test_no_checksum_unless_asked_for(
        self, engine: Engine, file: ShardFile, operation: Operation
    ) -> None:
        file.path.write_bytes(bytes(BLOCK))
        memory = Memory(BLOCK)
        (completion,) = run(engine, Transfer(operation, file, memory.address, BLOCK, 0))
        assert (completion.error, completion.crc32) == (None, None)

    @pytest.mark.parametrize(("offset", "done"), [(0, 10_000), (5000, 5000), (10_000, 0), (MIB, 0)])
    def test_a_read_past_the_end_fails_and_says_how_far_it_came(
        self, engine: Engine, directory: Path, offset: int, done: int
    ) -> None:
        (directory / "file").write_bytes(data := random_bytes(10_000))
        memory = Memory(20_000)
        with open_shard_file(directory / "file", direct=self.direct) as file:
            (completion,) = run(engine, read(file, memory, length=20_000, offset=offset))
        error = completion.error
        assert isinstance(error, TransferError)
        assert (error.errno, error.strerror) == (errno.EIO, "unexpected end of file")
        assert (error.filename, error.offset, error.length) == (str(file.path), offset, 20_000)
        assert error.done == done
        assert completion.crc32 is None
        assert memory.view[:done] == data[offset : offset + done]

    @pytest.mark.parametrize("shift", [0, 64])
    def test_a_full_device_keeps_its_errno(self, engine: Engine, shift: int) -> None:
        path = Path("/dev/full")
        memory = Memory(BLOCK)
        with path.open("r+b", buffering=0) as device:
            file = ShardFile(path, device.fileno(), direct=False, alignment=1)
            (completion,) = run(engine, write(file, memory, length=BLOCK, shift=shift))
        assert isinstance(completion.error, TransferError)
        assert (completion.error.errno, completion.error.done) == (errno.ENOSPC, 0)
        assert completion.error.filename == "/dev/full"

    def test_a_short_write_is_resumed_and_what_was_done_is_known(
        self, engine: Engine, file: ShardFile
    ) -> None:
        limit = 8 * BLOCK
        memory = Memory(2 * limit)
        memory.view[:] = data = random_bytes(len(memory.view))
        with file_size_limit(limit):
            (completion,) = run(engine, write(file, memory, length=2 * limit))
        assert isinstance(completion.error, TransferError)
        assert (completion.error.errno, completion.error.done) == (errno.EFBIG, limit)
        assert completion.retries == 1
        assert file.path.read_bytes() == data[:limit]

    @pytest.mark.parametrize("operation", Operation)
    def test_an_io_error_that_stays_is_reported_after_a_few_more_tries(
        self, engine: Engine, directory: Path, operation: Operation
    ) -> None:
        memory = Memory(2 * BLOCK)
        with half_mapped(directory / "short", length=2 * BLOCK) as (file, start):
            (completion,) = run(
                engine, Transfer(operation, file, memory.address, 2 * BLOCK, start, checksum=True)
            )
        error = completion.error
        assert isinstance(error, TransferError)
        assert (error.errno, error.filename) == (errno.EIO, str(file.path))
        assert (error.offset, error.length, error.done) == (start, 2 * BLOCK, BLOCK)
        assert completion.crc32 is None
        assert completion.retries == 1 + 3  # A short transfer, then three tries.

    @pytest.mark.parametrize("operation", Operation)
    def test_a_closed_file_is_refused(
        self, engine: Engine, file: ShardFile, operation: Operation
    ) -> None:
        file.close()
        memory = Memory(BLOCK)
        (completion,) = run(engine, Transfer(operation, file, memory.address, BLOCK, 0))
        assert isinstance(completion.error, TransferError)
        assert (completion.error.errno, completion.error.done) == (errno.EBADF, 0)

    def test_a_failure_does_not_touch_other_transfers(
        self, engine: Engine, file: ShardFile, directory: Path
    ) -> None:
        memory = Memory(BLOCK)
        with open_shard_file(file.path, direct=self.direct) as read_only:
            bad, good = run(
                engine,
                write(read_only, memory, length=BLOCK),
                write(file, memory, length=BLOCK),
            )
        assert isinstance(bad.error, TransferError)
        assert bad.error.errno == errno.EBADF
        assert good.error is None

    def test_no_more_than_the_queue_depth_is_in_flight(
        self, engine: Engine, file: ShardFile
    ) -> None:
        assert engine.queue_depth == QUEUE_DEPTH
        memory = Memory(BLOCK)
        transfer = write(file, memory, length=BLOCK)
        for count in range(QUEUE_DEPTH):
            assert engine.in_flight == count
            engine.submit(transfer)
        # What has ended but was not reaped counts as well.
        with pytest.raises(RuntimeError):
            engine.submit(transfer)
        assert engine.in_flight == QUEUE_DEPTH
        reaped = engine.reap()
        assert reaped
        assert engine.in_flight == QUEUE_DEPTH - len(reaped)
        assert len(reaped) + len(engine.drain()) == QUEUE_DEPTH
        assert engine.in_flight == 0

    def test_nothing_to_reap_is_no_wait(self, engine: Engine) -> None:
        assert engine.reap() == []
        assert engine.drain() == []

    def test_close_finishes_what_is_in_flight_and_ends_the_threads(
        self, engine: Engine, file: ShardFile
    ) -> None:
        memory = Memory(MIB)
        memory.view[:MIB] = data = random_bytes(MIB)
        engine.submit(write(file, memory, length=MIB))
        engine.close()
        assert file.path.read_bytes() == data
        assert engine.in_flight == 0
        engine.close()
        with pytest.raises(RuntimeError):
            engine.submit(write(file, memory, length=MIB))
        assert not [thread for thread in threading.enumerate() if "dcp_gds" in thread.name]
