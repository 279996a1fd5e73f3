"""Tally: what has changed over a stretch of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dcp_gds.hostmem.sample import Sample
from dcp_gds.hostmem.vmstat import moved

__all__ = ["Change", "Tally"]


@dataclass(frozen=True, slots=True)
class Change:
    """Several samples, told by what changed. A name that is missing is unknown.

    Parameters
    ----------
    seconds, samples
        From the first sample to the last, and how many they are.
    deltas
        By how much each counter has moved; at least that much if it was reset in between.
    first, last, low, high
        Each gauge in the first sample and the last, and its least and greatest value.
    unsettled_first_bytes, unsettled_high_bytes
        Dirty pages and pages under writeback together, at first and at most.
    """

    seconds: float
    samples: int
    deltas: Mapping[str, int]
    first: Mapping[str, int]
    last: Mapping[str, int]
    low: Mapping[str, int]
    high: Mapping[str, int]
    unsettled_first_bytes: int
    unsettled_high_bytes: int

    def rate(self, counter: str) -> float | None:
        """What a counter moved by in a second; None if it is unknown."""
        if counter not in self.deltas or not self.seconds:
            return None
        return self.deltas[counter] / self.seconds


class Tally:
    """Adds samples up as they come, in memory that does not grow with their number."""

    def __init__(self, first: Sample) -> None:
        self._began_s = first.time_s
        self._first = dict(first.gauges)
        self._last = first
        self._low = dict(first.gauges)
        self._high = dict(first.gauges)
        self._deltas = dict.fromkeys(first.counters, 0)
        self._unsettled_first = self._unsettled_high = _unsettled(first)
        self._samples = 1

    def add(self, sample: Sample) -> None:
        """Take one more sample, later than all before."""
        for name, after in sample.counters.items():
            before = self._last.counters.get(name)
            step = 0 if before is None else moved(before=before, after=after)
            self._deltas[name] = self._deltas.get(name, 0) + step
        for name, value in sample.gauges.items():
            self._first.setdefault(name, value)
            self._low[name] = min(self._low.get(name, value), value)
            self._high[name] = max(self._high.get(name, value), value)
        self._unsettled_high = max(self._unsettled_high, _unsettled(sample))
        self._last = sample
        self._samples += 1

    def change(self) -> Change:
        """Return what changed so far."""
        return Change(
            seconds=self._last.time_s - self._began_s,
            samples=self._samples,
            deltas=dict(self._deltas),
            first=dict(self._first),
            last=dict(self._last.gauges),
            low=dict(self._low),
            high=dict(self._high),
            unsettled_first_bytes=self._unsettled_first,
            unsettled_high_bytes=self._unsettled_high,
        )


def _unsettled(sample: Sample) -> int:
    """Bytes in the page cache that are not on the drive yet."""
    return sample.gauges.get("dirty_bytes", 0) + sample.gauges.get("writeback_bytes", 0)
