"""Result: a session as a document for machines, and its figures by contender."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dcp_gds.benchmark.comparison import Comparison
from dcp_gds.benchmark.environment import environment_of
from dcp_gds.benchmark.fio import Fio
from dcp_gds.benchmark.measure import Run, Spread
from dcp_gds.benchmark.scope import Scope
from dcp_gds.benchmark.session import Session
from dcp_gds.benchmark.target import Target
from dcp_gds.benchmark.way import Way

__all__ = ["SCHEMA", "Row", "document_of", "rows_of"]

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one contender over all rounds; None is unknown or has no meaning for it.

    `share` is its speed by the ceiling's, round by round.
    """

    contender: str
    gb_per_s: Spread
    share: Spread
    cpu_s_per_gb: Spread
    peak_bytes: Spread | None
    cached_bytes: Spread
    blocked_s: Spread | None
    way: Way


def rows_of(comparison: Comparison) -> list[Row]:
    """A row for each contender, in the order in which they were named."""
    return [_row(comparison, name) for name in comparison.ways]


def document_of(
    target: Target, scope: Scope, session: Session, *, fio: Fio | None, load: float
) -> dict[str, Any]:
    """Return all that was measured, and on what, ready for JSON.

    Parameters
    ----------
    load
        The machine's load average before the first run; that of now is our own.
    """
    environment = environment_of(target.path)
    return {
        "schema": SCHEMA,
        "environment": environment
        | {"load": f"{load:.2f}", "fio": "not installed" if fio is None else fio.version},
        "target": _plain(target),
        "scope": _plain(scope),
        "sweep": [_plain(point) for point in session.points],
        "settings": {
            tool: {"write": _plain(write), "read": _plain(read)}
            for tool, (write, read) in session.settings.items()
        },
        "write": _side(session.writes),
        "read": _side(session.reads),
        "notes": list(session.notes),
    }


def _side(comparison: Comparison) -> dict[str, Any]:
    """Writing or reading: the ceiling, the sums, and every run."""
    return {
        "ceiling": comparison.ceiling,
        "contenders": [_plain(row) for row in rows_of(comparison)],
        "runs": [_plain(run) for run in comparison.runs],
    }


def _row(comparison: Comparison, name: str) -> Row:
    """The figures of one contender."""
    runs = [run for run in comparison.runs if run.contender == name]
    return Row(
        contender=name,
        gb_per_s=Spread.of(run.gb_per_s for run in runs),
        share=comparison.shares[name],
        cpu_s_per_gb=Spread.of(run.cpu_s_per_gb for run in runs),
        peak_bytes=_fact(runs, lambda run: run.facts.get("peak_bytes")),
        cached_bytes=Spread.of(run.facts["cached_bytes"] for run in runs),
        blocked_s=_fact(runs, lambda run: run.facts.get("blocked_s")),
        way=comparison.ways[name],
    )


def _fact(runs: Sequence[Run], value: Callable[[Run], float | None]) -> Spread | None:
    """The spread of what some runs know; None if none does."""
    known = [each for run in runs if (each := value(run)) is not None]
    return Spread.of(known) if known else None


def _plain(value: Any) -> dict[str, Any]:
    """A dataclass for JSON, paths as text."""
    return {
        name: str(each) if name == "path" else each
        for name, each in dataclasses.asdict(value).items()
    }
