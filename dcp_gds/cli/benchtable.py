"""Benchtable: a benchmark's figures as tables on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from dcp_gds.benchmark.comparison import Comparison
from dcp_gds.benchmark.measure import Spread
from dcp_gds.benchmark.result import Row, rows_of
from dcp_gds.benchmark.scope import Scope
from dcp_gds.benchmark.session import Session
from dcp_gds.hostmem.units import format_bytes

__all__ = ["print_session"]

WIDTH = 150
MIB = 1 << 20
HEADINGS = ("GB/s", "of the ceiling", "CPU s/GB", "peak MiB", "cached MiB", "held, s")


def print_session(document: dict[str, Any], session: Session, scope: Scope) -> None:
    """Print both comparisons, what they were made on, and what to know about them."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(_table("Durable write", session.writes))
    console.print(_table("Cold read", session.reads))
    console.print(
        f"{format_bytes(scope.length)}, {scope.rounds} rounds in turn: median (least-greatest);"
        " % of the ceiling: median of each round's ratio"
    )
    console.print("; ".join(f"{name} {text}" for name, text in document["environment"].items()))
    for note in session.notes:
        console.print(f"note: {note}")
    busy = sum(not run.quiet for run in session.writes.runs)
    if busy:
        console.print(f"note: {busy} writes began on a drive that others kept busy")


def _table(title: str, comparison: Comparison) -> Table:
    """One side."""
    title = f"{title}; ceiling: {comparison.ceiling}"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    table.add_column("way of the bytes")
    for row in rows_of(comparison):
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    """A contender."""
    return [
        row.contender,
        str(row.gb_per_s),
        _percent(row.share),
        str(row.cpu_s_per_gb),
        _mib(row.peak_bytes),
        _mib(row.cached_bytes),
        "-" if row.blocked_s is None else str(row.blocked_s),
        row.way.text,
    ]


def _percent(share: Spread) -> str:
    return f"{share.median:.0%} ({share.low:.0%}-{share.high:.0%})"


def _mib(spread: Spread | None) -> str:
    """The greatest of some bytes: the ordinary case is no promise."""
    return "-" if spread is None else f"{spread.high / MIB:.0f}"
