"""Ranks: real gloo rank processes that run functions of a test module and return their results.

Starting a process that imports torch takes seconds, so a group of ranks is kept between calls and
serves many cases. A call that fails ends its group, because ranks that disagree about the next
collective would hang.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

import torch
import torch.distributed as dist

__all__ = ["EXPECTED_WARNINGS", "RankError", "Ranks", "run_on_ranks"]

# Four ranks share two cores here with other work; a healthy call takes seconds, so only a hang
# gets near this.
LIMIT_S = 300.0
# What the other ranks get after the first failure: enough for DCP to bring it to all of them.
GRACE_S = 20.0
EXIT_S = 10.0
PR_SET_PDEATHSIG = 1
# DCP says the first two on every save and load without a process group, which is how most tests
# run; torch says the third once in a process that touches complex32.
EXPECTED_WARNINGS = (
    "torch.distributed is disabled, unavailable or uninitialized",
    "torch.distributed is unavailable or uninitialized",
    "ComplexHalf support is experimental",
)

T = TypeVar("T")


class RankError(Exception):
    """A rank died, hung, or raised what cannot be pickled: there is no exception to raise again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank sends back: the value, or the error with its traceback as text."""

    value: object = None
    error: BaseException | None = None
    trace: str = ""


class Ranks:
    """`world_size` rank processes in one gloo group, started when first needed.

    Parameters
    ----------
    world_size
        Number of processes.
    limit_s
        Seconds that one call may take before its ranks count as hung and are killed.
    """

    def __init__(self, world_size: int, *, limit_s: float = LIMIT_S) -> None:
        self.world_size = world_size
        self._limit_s = limit_s
        self._processes: list[SpawnProcess] = []
        self._connections: list[Connection] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, target: Callable[..., T], *args: object) -> list[T]:
        """Call `target(*args)` on every rank and return the results in rank order.

        `target` is a function of an importable module; arguments and results are pickled. The
        first error that a rank raises is raised here, with the rank's traceback as a note.
        """
        request = pickle.dumps((target, args))
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send_bytes(request)
        outcomes = self._collect()
        failed = [rank for rank, outcome in outcomes.items() if outcome.error is not None]
        if failed:
            self.close()
            first = outcomes[failed[0]]
            assert first.error is not None
            first.error.add_note(f"raised on rank {failed[0]} of {self.world_size}:\n{first.trace}")
            raise first.error
        return [cast(T, outcomes[rank].value) for rank in range(self.world_size)]

    def close(self) -> None:
        """End the processes and reap them; a later call starts new ones."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(EXIT_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._connections, self._processes = [], []
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _start(self) -> None:
        """Start one process per rank, meeting over a file."""
        context = multiprocessing.get_context("spawn")
        self._directory = tempfile.TemporaryDirectory(prefix="ranks-")
        store = Path(self._directory.name) / "store"
        for rank in range(self.world_size):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(there, rank, self.world_size, store, self._limit_s),
                daemon=True,
            )
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def _collect(self) -> dict[int, Outcome]:
        """Wait for every rank's outcome; the first failure shortens the wait for the others."""
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + self._limit_s
        while len(outcomes) < self.world_size:
            waiting = {
                connection: rank
                for rank, connection in enumerate(self._connections)
                if rank not in outcomes
            }
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = RankError(f"ranks {sorted(waiting.values())} did not answer: killed as hung")
                outcomes.update(dict.fromkeys(waiting.values(), Outcome(error=late)))
                for rank in waiting.values():
                    self._processes[rank].kill()
            for connection in ready:
                rank = waiting[cast("Connection", connection)]
                outcomes[rank] = self._receive(rank)
                if outcomes[rank].error is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return outcomes

    def _receive(self, rank: int) -> Outcome:
        """Read one rank's outcome; a closed pipe is a dead rank."""
        try:
            return cast(Outcome, pickle.loads(self._connections[rank].recv_bytes()))
        except (EOFError, ConnectionResetError):
            self._processes[rank].join(EXIT_S)
            code = self._processes[rank].exitcode
            return Outcome(error=RankError(f"rank {rank} ended during the call, exit code {code}"))


def run_on_ranks(world_size: int, target: Callable[..., T], *args: object) -> list[T]:
    """Call `target(*args)` on fresh ranks, end them, and return the results in rank order."""
    with Ranks(world_size) as ranks:
        return ranks.run(target, *args)


def _serve(connection: Connection, rank: int, world_size: int, store: Path, limit_s: float) -> None:
    """Run requests until the parent closes the pipe."""
    # A parent that is killed cannot end its ranks, and a rank inside a collective would not see
    # the closed pipe.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=limit_s),
    )
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            break
        connection.send_bytes(_answer(request))
    dist.destroy_process_group()


def _answer(request: bytes) -> bytes:
    """Run one request with warnings as errors, as in the parent, and pickle its outcome."""
    try:
        target, args = pickle.loads(request)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for message in EXPECTED_WARNINGS:
                warnings.filterwarnings("ignore", message)
            return pickle.dumps(Outcome(value=target(*args)))
    except BaseException as error:  # noqa: BLE001  DCP raises a BaseException
        return _pickled_error(error)


def _pickled_error(error: BaseException) -> bytes:
    """Pickle an error's outcome; what does not survive the way becomes text."""
    trace = traceback.format_exc()
    try:
        data = pickle.dumps(Outcome(error=error, trace=trace))
        pickle.loads(data)
    except Exception as reason:  # noqa: BLE001  each class fails in its own way
        kept = RankError(f"{error!r} (not sent as it was: {reason!r})")
        return pickle.dumps(Outcome(error=kept, trace=trace))
    return data
