"""Native engine and facts of files: bounds, faults and lifetimes that the engine suite cannot see.

Method: the extension by itself on real files; the kernel as the oracle for threads and signals,
os.pread and zlib for bytes; a frozen filesystem in place of a slow one; a forked child.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_gds import _core
from dcp_gds.io.direct import dio_alignment, preallocate
from tests.filesystems import DIRECT_KINDS, KINDS, Mounts
from tests.io.engine_suite import Memory, random_bytes
from tests.io.nativethreads import engine_threads

PAGE = 4096
MIB = 1 << 20
GIB = 1 << 30
BOUNCE = 64 << 10
DEPTH = 4
FILE_LENGTH = 300_001
# <linux/fs.h>
FIFREEZE = 0xC0045877
FITHAW = 0xC0045878


@pytest.fixture
def engine() -> Iterator[_core.Engine]:
    engine = _core.Engine(workers=2, queue_depth=DEPTH, bounce_bytes=BOUNCE)
    yield engine
    engine.close()


def submit(
    engine: _core.Engine,
    fd: int,
    memory: Memory,
    *,
    write: bool = False,
    length: int,
    shift: int = 0,
    offset: int = 0,
    alignment: int = 1,
) -> None:
    """Submit a transfer with checksum, ticket 7."""
    engine.submit(
        ticket=7,
        write=write,
        fd=fd,
        address=memory.address + shift,
        length=length,
        offset=offset,
        alignment=alignment,
        checksum=True,
    )


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """An open descriptor."""
    fd = os.open(path, flags, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


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


@contextmanager
def frozen(directory: Path) -> Iterator[threading.Event]:
    """Freeze a filesystem, so that writes wait, until the event is set, at the latest at the end."""
    thaw = threading.Event()
    with opened(directory, os.O_RDONLY) as fd:
        fcntl.ioctl(fd, FIFREEZE, 0)

        def wait_and_thaw() -> None:
            thaw.wait()
            fcntl.ioctl(fd, FITHAW, 0)

        thread = threading.Thread(target=wait_and_thaw)
        thread.start()
        try:
            yield thaw
        finally:
            thaw.set()
            thread.join()


@pytest.mark.root
class TestWaiting:
    def test_submitting_never_waits_and_is_bounded(
        self, engine: _core.Engine, mounts: Mounts
    ) -> None:
        directory = mounts.directory("ext4")
        memory = Memory(PAGE)
        with opened(directory / "file", os.O_RDWR | os.O_CREAT) as fd:
            with frozen(directory):
                for count in range(DEPTH):
                    assert engine.in_flight == count
                    submit(engine, fd, memory, write=True, length=PAGE)
                with pytest.raises(RuntimeError, match="queue depth"):
                    submit(engine, fd, memory, write=True, length=PAGE)
                assert engine.in_flight == DEPTH
            completions: list[_core.Completion] = []
            while engine.in_flight:
                completions += engine.reap()
        assert [completion.done for completion in completions] == [PAGE] * DEPTH

    @pytest.mark.parametrize("method", ["reap", "close"])
    def test_other_threads_run_while_one_waits(
        self, engine: _core.Engine, mounts: Mounts, method: str
    ) -> None:
        directory = mounts.directory("ext4")
        memory = Memory(PAGE)
        entered = threading.Event()
        beats = 0
        with opened(directory / "file", os.O_RDWR | os.O_CREAT) as fd, frozen(directory) as thaw:
            submit(engine, fd, memory, write=True, length=PAGE)

            def heartbeat() -> None:
                nonlocal beats
                entered.wait()
                # Each beat hands the interpreter over, so that the wait has begun long before the last.
                # If the wait kept the interpreter, no beat would follow and nothing would thaw.
                while beats < 1000:
                    time.sleep(0)
                    beats += 1
                thaw.set()

            thread = threading.Thread(target=heartbeat)
            thread.start()
            entered.set()
            getattr(engine, method)()
            assert thaw.is_set()
            thread.join()
        assert engine.in_flight == 0


class TestLifetime:
    def test_close_leaves_no_thread_and_no_descriptor(self) -> None:
        descriptors = os.listdir("/proc/self/fd")
        engine = _core.Engine(workers=3, queue_depth=DEPTH, bounce_bytes=BOUNCE)
        assert len(engine_threads()) == 3
        engine.close()
        engine.close()
        assert engine_threads() == []
        assert os.listdir("/proc/self/fd") == descriptors
        assert engine.reap() == []
        with pytest.raises(RuntimeError, match="closed"):
            submit(engine, 0, Memory(0), length=0)

    def test_an_engine_that_nobody_closed_ends_with_its_last_reference(
        self, tmp_path: Path
    ) -> None:
        memory = Memory(MIB)
        memory.view[:] = random_bytes(len(memory.view))
        with opened(tmp_path / "file", os.O_RDWR | os.O_CREAT) as fd:
            engine = _core.Engine(workers=1, queue_depth=DEPTH, bounce_bytes=BOUNCE)
            submit(engine, fd, memory, write=True, length=MIB)
            del engine
            assert engine_threads() == []
            assert os.pread(fd, MIB + 1, 0) == memory.view[:MIB]

    def test_no_signal_reaches_a_worker(self, engine: _core.Engine) -> None:
        assert engine.in_flight == 0
        # The C library keeps two for itself, and these two cannot be blocked.
        blockable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        for task in engine_threads():
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            blocked = int(status["SigBlk"], base=16)
            assert not [number for number in blockable if not blocked >> (number - 1) & 1]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()

    def test_a_forked_child_can_close_but_not_use_an_engine(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, "3 refused\nparent 0\n"), done.stderr


FORKING = """
import os, warnings
from dcp_gds import _core
warnings.simplefilter("ignore", DeprecationWarning)
engine = _core.Engine(workers=2, queue_depth=2, bounce_bytes=65536)
child = os.fork()
if child == 0:
    refused = 0
    for use in (
        lambda: engine.submit(ticket=0, write=False, fd=-1, address=0, length=0, offset=0,
                              alignment=1, checksum=False),
        lambda: engine.reap(),
        lambda: engine.in_flight,
    ):
        try:
            use()
        except RuntimeError:
            refused += 1
    engine.close()
    del engine
    print(refused, "refused", flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
engine.close()
print("parent", status)
"""


class TestFacts:
    @pytest.mark.root
    @pytest.mark.parametrize("kind", KINDS)
    def test_direct_io_alignment_is_known_where_direct_io_is_honoured(
        self, mounts: Mounts, kind: str
    ) -> None:
        with opened(mounts.directory(kind) / "file", os.O_RDWR | os.O_CREAT) as fd:
            found = dio_alignment(fd)
        if kind not in DIRECT_KINDS:
            assert found is None
            return
        assert found is not None
        memory, offset = found
        assert offset == (4096 if "4k" in kind else 512)
        assert memory in {1 << bits for bits in range(13)}

    def test_what_is_no_file_has_no_alignment(self) -> None:
        reading, writing = os.pipe()
        assert dio_alignment(reading) is None
        os.close(reading)
        os.close(writing)
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            dio_alignment(reading)
        assert caught.value.errno == errno.EBADF

    @pytest.mark.root
    @pytest.mark.parametrize("kind", KINDS)
    def test_preallocation_gives_the_file_its_length_and_blocks(
        self, mounts: Mounts, kind: str
    ) -> None:
        with opened(mounts.directory(kind) / "file", os.O_RDWR | os.O_CREAT) as fd:
            if preallocate(fd, length=3 * MIB + 1):
                status = os.fstat(fd)
                assert status.st_size == 3 * MIB + 1
                assert status.st_blocks * 512 >= status.st_size
            else:
                assert kind in {"ext3", "ramfs"}
                assert os.fstat(fd).st_size == 0

    @pytest.mark.root
    def test_a_full_disk_is_found_at_once(self, mounts: Mounts) -> None:
        with (
            opened(mounts.directory("ext4") / "file", os.O_RDWR | os.O_CREAT) as fd,
            pytest.raises(OSError, match="No space left") as caught,
        ):
            preallocate(fd, length=GIB)
        assert caught.value.errno == errno.ENOSPC

    def test_a_refused_preallocation_keeps_its_errno(self, tmp_path: Path) -> None:
        with opened(tmp_path / "file", os.O_RDWR | os.O_CREAT) as fd:
            with pytest.raises(OSError, match="Invalid argument"):
                preallocate(fd, length=0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            preallocate(fd, length=1)
