"""Native engine: how it waits, what it leaves behind, and what a fork does to it.

Method: the kernel is asked for threads, signals and descriptors; a frozen filesystem in place of a
slow one; a forked child.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcp_gds import _core
from tests.filesystems import Mounts
from tests.io.engine_suite import Memory, random_bytes
from tests.io.native import engine_threads, opened, submit

PAGE = 4096
MIB = 1 << 20
BOUNCE = 64 << 10
DEPTH = 4
# <linux/fs.h>
FIFREEZE = 0xC0045877
FITHAW = 0xC0045878
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


@pytest.fixture
def engine() -> Iterator[_core.Engine]:
    engine = _core.Engine(workers=2, queue_depth=DEPTH, bounce_bytes=BOUNCE)
    yield engine
    engine.close()


@contextmanager
def frozen(directory: Path) -> Iterator[threading.Event]:
    """Freeze a filesystem, so that writes wait, until the event is set or the block ends."""
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
                # Each beat hands the interpreter over, so the wait begins long before the last.
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


def test_close_leaves_no_thread_and_no_descriptor() -> None:
    descriptors = open_descriptors()
    engine = _core.Engine(workers=3, queue_depth=DEPTH, bounce_bytes=BOUNCE)
    assert len(engine_threads()) == 3
    engine.close()
    engine.close()
    assert engine_threads() == []
    assert open_descriptors() == descriptors
    assert engine.reap() == []
    with pytest.raises(RuntimeError, match="closed"):
        submit(engine, 0, Memory(0), length=0)


def test_an_engine_that_nobody_closed_ends_with_its_last_reference(tmp_path: Path) -> None:
    memory = Memory(MIB)
    memory.view[:] = random_bytes(len(memory.view))
    with opened(tmp_path / "file", os.O_RDWR | os.O_CREAT) as fd:
        engine = _core.Engine(workers=1, queue_depth=DEPTH, bounce_bytes=BOUNCE)
        submit(engine, fd, memory, write=True, length=MIB)
        del engine
        assert engine_threads() == []
        assert os.pread(fd, MIB + 1, 0) == memory.view[:MIB]


def test_no_signal_reaches_a_worker(engine: _core.Engine) -> None:
    assert engine.in_flight == 0
    # The C library keeps two for itself, and these two cannot be blocked.
    blockable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for task in engine_threads():
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        blocked = int(status["SigBlk"], base=16)
        assert not [number for number in blockable if not blocked >> (number - 1) & 1]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_forked_child_can_close_but_not_use_an_engine() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "3 refused\nparent 0\n"), done.stderr


def open_descriptors() -> list[str]:
    """Return the numbers of this process's descriptors."""
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())
