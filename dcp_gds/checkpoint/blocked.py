"""Blocked: how long a trainer waited for its save, and what the save did meanwhile."""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Blocked", "Clock", "Phase"]


class Phase(enum.Enum):
    """What a save does, as far as its trainer may have to wait for it."""

    PLAN = "plan"
    """DCP plans and gathers, and the sizes of all items are found."""
    COPY = "copy"
    """Tensors are copied to host memory of the save's own."""
    DRIVE = "drive"
    """Tensors that did not fit are written from their own memory."""
    BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Seconds that the trainer waited, in total and while the save was in a phase."""

    seconds: float = 0.0
    plan_seconds: float = 0.0
    copy_seconds: float = 0.0
    drive_seconds: float = 0.0


class Clock:
    """Notes the phases of a save and the waits of its trainer, which are on two threads."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._phases: list[tuple[Phase, float]] = [(Phase.COPY, self._began)]
        self._waits: list[tuple[float, float]] = []

    @property
    def age_seconds(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self._began

    def enter(self, phase: Phase) -> None:
        """A phase begins; the one before ends."""
        self._phases.append((phase, time.perf_counter()))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """The trainer waits for as long as this is entered."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waits.append((began, time.perf_counter()))

    def blocked(self) -> Blocked:
        """What the waits so far come to."""
        phases, waits = list(self._phases), list(self._waits)
        ends = [start for _, start in phases[1:]] + [float("inf")]
        seconds = dict.fromkeys(Phase, 0.0)
        for (phase, start), end in zip(phases, ends, strict=True):
            for wait_start, wait_end in waits:
                seconds[phase] += max(0.0, min(end, wait_end) - max(start, wait_start))
        return Blocked(
            seconds=sum(end - start for start, end in waits),
            plan_seconds=seconds[Phase.PLAN],
            copy_seconds=seconds[Phase.COPY],
            drive_seconds=seconds[Phase.DRIVE],
        )
