"""Outside view: the peak memory of a step that runs in a process of its own, read from /proc.

The step is a generator function: it makes its state, yields, does its work, and ends. Memory is
read when it yields and when it has ended, the peak being reset in between.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.ranks import EXPECTED_WARNINGS, PR_SET_PDEATHSIG

__all__ = ["Peak", "peak_of"]

MIB = 1 << 20
EXIT_S = 30.0
# Writing this to clear_refs makes the peak what is resident now (proc_pid_clear_refs(5)).
RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Peak:
    """Resident memory before the work and the most during it, in bytes."""

    before: int
    most: int

    @property
    def extra_mib(self) -> float:
        """What the work needed beyond what was there, in MiB."""
        return (self.most - self.before) / MIB


def peak_of(step: Callable[..., Iterator[None]], *args: object) -> Peak:
    """Run `step(*args)` in a fresh process and measure its work from here."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, pickle.dumps((step, args))), daemon=True)
    process.start()
    there.close()
    try:
        _expect(here, "ready")
        assert process.pid is not None
        Path(f"/proc/{process.pid}/clear_refs").write_text(RESET_PEAK)
        before = _status(process.pid, "VmRSS")
        here.send("go")
        _expect(here, "done")
        return Peak(before, _status(process.pid, "VmHWM"))
    finally:
        here.close()
        process.join(EXIT_S)
        if process.is_alive():
            process.kill()
            process.join()


def _expect(connection: Connection, word: str) -> None:
    """Wait for a word of the child; anything else is its traceback."""
    said = connection.recv()
    assert said == word, f"the measured process failed:\n{said}"


def _status(pid: int, field: str) -> int:
    """A field of /proc/PID/status that is in kB, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def _serve(connection: Connection, request: bytes) -> None:
    """Run the step, stopping where it yields and before the process ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    try:
        step, args = pickle.loads(request)
        running = step(*args)
        next(running)
        connection.send("ready")
        connection.recv()
        for _ in running:
            pass
        connection.send("done")
    except Exception:  # noqa: BLE001  whatever it is, the parent shows it
        connection.send(traceback.format_exc())
    try:
        connection.recv()  # keep what is to be measured until the parent hangs up
    except EOFError:
        return
