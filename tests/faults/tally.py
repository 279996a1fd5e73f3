"""Tally: the faults that a run caused, by kind and outcome."""

from __future__ import annotations

from collections import Counter

__all__ = ["Tally"]


class Tally:
    """Counts faults; the run's last lines show the table."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def add(self, kind: str, outcome: str, *, times: int = 1) -> None:
        """Count faults of a kind that ended alike.

        Parameters
        ----------
        kind
            What was done to which checkpoint, as "bit flips, shard file".
        outcome
            What came of it, as "CorruptCheckpointError" or "old checkpoint".
        """
        self._counts.setdefault(kind, Counter())[outcome] += times

    def lines(self) -> list[str]:
        """The table in Markdown, kinds in the order of their first fault; empty without faults."""
        if not self._counts:
            return []
        rows = ["| fault | times | outcomes |", "| --- | ---: | --- |"]
        for kind, counts in self._counts.items():
            outcomes = ", ".join(f"{times:,} {name}" for name, times in counts.most_common())
            rows.append(f"| {kind} | {counts.total():,} | {outcomes} |")
        return rows
