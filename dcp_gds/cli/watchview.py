"""Watchview: a watch on a terminal, as a table."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dcp_gds.hostmem.sample import Sample
from dcp_gds.hostmem.tally import Change
from dcp_gds.hostmem.units import format_bytes
from dcp_gds.hostmem.watch import HostMemoryWatch

__all__ = ["WatchView", "summary_table"]

# Gauges and counters in the order in which trouble grows.
GAUGES = (
    ("available_bytes", "available"),
    ("dirty_bytes", "dirty"),
    ("writeback_bytes", "under writeback"),
    ("pinned_bytes", "pinned"),
    ("swap_used_bytes", "swap in use"),
    ("cgroup_bytes", "cgroup"),
    ("cgroup_dirty_bytes", "cgroup, dirty"),
    ("cgroup_swap_bytes", "cgroup, swap"),
    ("rss_bytes", "processes"),
    ("process_swap_bytes", "processes, swap"),
    ("locked_bytes", "processes, locked"),
)
COUNTERS = (
    ("drive_written_bytes", "written to drives"),
    ("drive_read_bytes", "read from drives"),
    ("pgscan_kswapd", "scanned by kswapd"),
    ("pgscan_direct", "scanned by processes"),
    ("allocstall", "allocations that waited"),
    ("pswpin", "swapped in"),
    ("pswpout", "swapped out"),
    ("psi_memory_some_us", "waited for memory"),
    ("psi_io_some_us", "waited for I/O"),
)
SPARKS = "▁▂▃▄▅▆▇█"
SPARKS_SHOWN = 40


class WatchView:
    """Draws a watch on stderr while it runs, if `shown`."""

    def __init__(self, watch: HostMemoryWatch, *, shown: bool) -> None:
        self._watch = watch
        self._live = (
            Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            if shown
            else None
        )

    def __enter__(self) -> WatchView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self) -> None:
        """Draw what is known now."""
        if self._live is not None:
            table = _live_table(self._watch.change(), self._watch.samples[-SPARKS_SHOWN:])
            self._live.update(table, refresh=True)


def summary_table(change: Change) -> Table:
    """Everything that was watched, from the first sample to the last."""
    table = Table(box=None, pad_edge=False, header_style="")
    for heading in ("", "AT FIRST", "LEAST", "MOST", "IN ALL", "A SECOND"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, label in GAUGES:
        if name in change.last:
            values = (change.first[name], change.low[name], change.high[name])
            table.add_row(label, *map(format_bytes, values), "", "")
    for name, label in COUNTERS:
        if name in change.deltas:
            moved, a_second = change.deltas[name], change.rate(name) or 0.0
            table.add_row(label, "", "", "", _counted(name, moved), _counted(name, a_second))
    return table


def _live_table(change: Change, samples: Sequence[Sample]) -> Table:
    """What is now, and how it went lately."""
    table = Table(box=None, pad_edge=False, title=f"{change.seconds:.0f} s", title_justify="left")
    for heading in ("", "NOW", "MOST", "LATELY"):
        table.add_column(heading, justify="left" if heading in {"", "LATELY"} else "right")
    for name, label in GAUGES:
        if name in change.last:
            lately = [sample.gauges.get(name, 0) for sample in samples]
            now, most = format_bytes(change.last[name]), format_bytes(change.high[name])
            table.add_row(label, now, most, _sparks(lately))
    for name, label in COUNTERS:
        if name in change.deltas:
            steps = list(_steps(name, samples))
            last, top = (steps[-1] if steps else 0.0), max(steps, default=0.0)
            table.add_row(
                label, f"{_counted(name, last)}/s", f"{_counted(name, top)}/s", _sparks(steps)
            )
    return table


def _steps(name: str, samples: Sequence[Sample]) -> Iterator[float]:
    """What a counter moved by in a second, from sample to sample."""
    for before, after in itertools.pairwise(samples):
        seconds = after.time_s - before.time_s
        step = after.counters.get(name, 0) - before.counters.get(name, 0)
        yield max(step, 0) / seconds if seconds > 0 else 0.0


def _sparks(values: Sequence[float]) -> str:
    """Values as a line of blocks; nothing where nothing happened."""
    most = max(values, default=0)
    if most <= 0:
        return ""
    top = len(SPARKS) - 1
    return "".join(SPARKS[round(value / most * top)] for value in values)


def _counted(name: str, value: float) -> str:
    """A counter's move in its unit."""
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.startswith("pswp"):
        return format_bytes(value * mmap.PAGESIZE)
    if name.endswith("_us"):
        return f"{value / 1e6:.2f} s"
    return f"{value:,.0f}"
