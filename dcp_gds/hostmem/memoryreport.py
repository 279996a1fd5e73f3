"""Memoryreport: what the host's memory went through during a save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dcp_gds.hostmem.advice import advise
from dcp_gds.hostmem.iterations import TimesSummary
from dcp_gds.hostmem.tally import Change
from dcp_gds.hostmem.verdict import Verdict, judge, reasons_for

__all__ = ["MemoryReport", "report_of"]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The kernel's counters around one save, or around any other stretch of time.

    Parameters
    ----------
    verdict
        "calm", "dirty pages piling up", "kswapd scanning" or "swapping".
    reasons, advice
        The numbers behind it, and what to change; nothing when all is calm.
    seconds, samples
        How long was watched, and how often the kernel was asked.
    deltas
        By how much each counter moved; one that this kernel lacks is missing.
    high, low
        Greatest and least value of each gauge, in bytes.
    iterations
        Times of training's iterations so far, if `HostMemoryWatch.iteration` was used.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    seconds: float
    samples: int
    deltas: Mapping[str, int]
    high: Mapping[str, int]
    low: Mapping[str, int]
    iterations: TimesSummary | None = None


def report_of(
    change: Change,
    *,
    staging_bytes: int | None = None,
    interval_s: float | None = None,
    engine: str | None = None,
    iterations: TimesSummary | None = None,
) -> MemoryReport:
    """Judge a change; the arguments are those of `advise`."""
    verdict = judge(change)
    return MemoryReport(
        verdict=verdict,
        reasons=reasons_for(change),
        advice=advise(
            verdict, change, staging_bytes=staging_bytes, interval_s=interval_s, engine=engine
        ),
        seconds=change.seconds,
        samples=change.samples,
        deltas=change.deltas,
        high=change.high,
        low=change.low,
        iterations=iterations,
    )
