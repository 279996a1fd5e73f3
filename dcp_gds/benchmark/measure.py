"""Measure: wall and CPU seconds of one run, rounds that interleave, medians with their spread."""

from __future__ import annotations

import gc
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

__all__ = ["Clocks", "Run", "Spread", "interleave", "per_round", "timed"]

T = TypeVar("T")

# From here on decimals of GB/s or seconds say nothing.
WHOLE_FROM = 100


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds that something took.

    Parameters
    ----------
    seconds
        Wall time.
    cpu_s
        User and system time of this process with all its threads, ended ones too.
    machine_cpu_s
        The same of the whole machine. Kernel threads that write dirty pages back are in this one
        only, and so is everything else that runs: read it on a quiet machine. None where it was not
        measured: another program's clocks say nothing of it.
    """

    seconds: float
    cpu_s: float
    machine_cpu_s: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One contender in one round.

    Parameters
    ----------
    quiet
        Whether the drive was idle when the run began.
    facts
        What else was measured, by name with its unit last.
    """

    contender: str
    round: int
    length: int
    clocks: Clocks
    quiet: bool = True
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second."""
        return self.length / self.clocks.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds of the process per 10^9 bytes."""
        return self.clocks.cpu_s / (self.length / 1e9)

    @property
    def machine_cpu_s_per_gb(self) -> float:
        """CPU seconds of the machine per 10^9 bytes, of a run whose clocks have them."""
        assert self.clocks.machine_cpu_s is not None
        return self.clocks.machine_cpu_s / (self.length / 1e9)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def __str__(self) -> str:
        digits = 2 if abs(self.median) < WHOLE_FROM else 0
        if f"{self.low:.{digits}f}" == f"{self.high:.{digits}f}":
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def timed(action: Callable[[], object]) -> Clocks:
    """Run `action` and return what it took. Garbage of earlier runs is collected before."""
    gc.collect()
    machine = _machine_cpu_s()
    cpu = _process_cpu_s()
    start = time.perf_counter()
    action()
    seconds = time.perf_counter() - start
    return Clocks(seconds, _process_cpu_s() - cpu, _machine_cpu_s() - machine)


def interleave(contenders: Sequence[T], *, rounds: int) -> Iterator[tuple[int, T]]:
    """Every contender once a round, each round starting with the next one.

    What drifts (a drive that slows down, a host that gets busy) then hits all alike, and no
    contender always runs after the same other one.
    """
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield turn, contender


def per_round(
    runs: Sequence[Run], value: Callable[[Run], float], *, of: str, against: Sequence[str]
) -> list[tuple[float, list[float]]]:
    """For each round: the value of contender `of`, and those of the ones that it is held against.

    Rounds in which one is missing are left out, and contenders that never ran.
    """
    table: dict[int, dict[str, float]] = {}
    for run in runs:
        table.setdefault(run.round, {})[run.contender] = value(run)
    pairs = []
    for _, values in sorted(table.items()):
        others = [values[name] for name in against if name in values]
        if of in values and others:
            pairs.append((values[of], others))
    return pairs


def _process_cpu_s() -> float:
    """User and system seconds of this process, with threads that have ended."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _machine_cpu_s() -> float:
    """Seconds in which the machine's CPUs were neither idle nor waiting, in steps of 10 ms each."""
    # proc_stat(5): user nice system idle iowait irq softirq steal guest guest_nice, in clock ticks;
    # the guest times are in user and nice already.
    first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    user, nice, system, _, _, irq, softirq, *_ = (int(word) for word in first.split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
