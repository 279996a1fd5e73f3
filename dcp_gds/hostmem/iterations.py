"""Iterations: how long training's iterations take, while a save runs and otherwise."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["IterationTimes", "Spread", "TimesSummary"]

# The 99th percentile of the last 10,000 rests on a hundred values; 80 KB for each of both kinds.
KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 99th percentile and worst of some times, in seconds, and how many they are."""

    count: int
    median_s: float
    p99_s: float
    worst_s: float


@dataclass(frozen=True, slots=True)
class TimesSummary:
    """Iterations that a save overlapped, and all others; None where there was none.

    Parameters
    ----------
    inflation
        The median inside by the median outside: 1.0 when a save costs the training nothing.
    """

    inside: Spread | None
    outside: Spread | None
    inflation: float | None


class IterationTimes:
    """Collects times, the last `KEPT_MAX` of each kind."""

    def __init__(self) -> None:
        self._inside: deque[float] = deque(maxlen=KEPT_MAX)
        self._outside: deque[float] = deque(maxlen=KEPT_MAX)

    def add(self, seconds: float, *, in_save: bool) -> None:
        """Take one iteration's time."""
        (self._inside if in_save else self._outside).append(seconds)

    def summary(self) -> TimesSummary | None:
        """Return what was collected; None if nothing was."""
        inside, outside = _spread(tuple(self._inside)), _spread(tuple(self._outside))
        if inside is None and outside is None:
            return None
        inflation = None
        if inside is not None and outside is not None and outside.median_s > 0:
            inflation = inside.median_s / outside.median_s
        return TimesSummary(inside, outside, inflation)


def _spread(times: Sequence[float]) -> Spread | None:
    """The spread of some times, by the nearest rank: a percentile is a time that occurred."""
    if not times:
        return None
    ordered = sorted(times)
    rank = math.ceil(0.99 * len(ordered))
    return Spread(len(ordered), statistics.median(ordered), ordered[rank - 1], ordered[-1])
