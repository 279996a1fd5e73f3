"""Reportfigure: one or two runs, drawn beside each other."""

from __future__ import annotations

import io
import itertools
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.runlog import Run
from dcp_gds.hostmem.sample import SLOW_INTERVAL_S, Sample
from dcp_gds.hostmem.vmstat import moved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

GIB, MIB = 1 << 30, 1 << 20
WIDTH_IN, ROW_IN, DPI = 6.4, 1.5, 80
# More points than pixels only cost time.
POINTS_MAX = 2_000
HEADROOM = 1.05
RATE_WINDOW_S = 1.05 * SLOW_INTERVAL_S
SAVE_COLOUR, LINE_COLOUR, SLOW_COLOUR = "#d9d9d9", "#1f5fa8", "#b3331d"


@dataclass(frozen=True, slots=True)
class Panel:
    """A row of the figure: its title, unit, and what is drawn of a run."""

    title: str
    unit: str
    points: Callable[[Run], list[tuple[float, float]]]
    dots: bool = False


def draw(runs: Sequence[Run]) -> bytes:
    """Return a PNG: a column for each run, a row for each subject, saves shaded.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"{error}; install what draws reports: pip install 'dcp-gds[report]'"
        ) from error
    size = (WIDTH_IN * len(runs), ROW_IN * len(PANELS))
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    # The same scales for all runs, or a glance at two of them would compare nothing.
    grid = figure.subplots(len(PANELS), len(runs), sharex="all", sharey="row", squeeze=False)
    for row, panel in enumerate(PANELS):
        top = max(_draw_panel(axes, panel, run) for axes, run in zip(grid[row], runs, strict=True))
        # A value that never changes lies on the ground, not in the middle of nowhere.
        grid[row][0].set_ylim(0, top * HEADROOM or 1)
        grid[row][0].set_ylabel(panel.unit)
    for column, run in enumerate(runs):
        grid[0][column].set_title(f"{run.path.name}\n{PANELS[0].title}", fontsize=9)
        grid[-1][column].set_xlabel("seconds, saves shaded")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _draw_panel(axes: Axes, panel: Panel, run: Run) -> float:
    """Draw one subject of one run and return its greatest value."""
    began_s = run.samples[0].time_s
    for save in run.saves:
        axes.axvspan(save.begin_s - began_s, save.end_s - began_s, color=SAVE_COLOUR, lw=0)
    points = panel.points(run)
    step = max(len(points) // POINTS_MAX, 1)
    times = [time_s - began_s for time_s, _ in points[::step]]
    values = [value for _, value in points[::step]]
    if panel.dots:
        axes.plot(times, values, ".", color=SLOW_COLOUR, markersize=3)
    else:
        axes.plot(times, values, color=LINE_COLOUR, linewidth=1)
    axes.set_title(panel.title, fontsize=9)
    axes.margins(x=0)
    axes.tick_params(labelsize=8)
    return max(values, default=0.0)


def _gauge(name: str, *, unit: int) -> Callable[[Run], list[tuple[float, float]]]:
    """A gauge over time."""

    def points(run: Run) -> list[tuple[float, float]]:
        return [
            (sample.time_s, sample.gauges[name] / unit)
            for sample in run.samples
            if name in sample.gauges
        ]

    return points


def _rate(*names: str, unit: float) -> Callable[[Run], list[tuple[float, float]]]:
    """What counters together move by in a second, over time."""

    def points(run: Run) -> list[tuple[float, float]]:
        return list(_steps(run, names, unit))

    return points


def _steps(run: Run, names: Sequence[str], unit: float) -> Iterator[tuple[float, float]]:
    """The steps over windows in which every counter has been read anew: some are not each time."""
    known: list[Sample] = []
    for sample in run.samples:
        if known and sample.time_s - known[-1].time_s < RATE_WINDOW_S:
            continue
        if all(name in sample.counters for name in names):
            known.append(sample)
    for before, after in itertools.pairwise(known):
        seconds = after.time_s - before.time_s
        if seconds > 0:
            step = sum(
                moved(before=before.counters[name], after=after.counters[name]) for name in names
            )
            yield after.time_s, step / seconds / unit


def _iterations(run: Run) -> list[tuple[float, float]]:
    """How long iterations took, at their ends."""
    return [(iteration.end_s, iteration.seconds * 1000) for iteration in run.iterations]


PANELS = (
    Panel("written to the drives", "GB/s", _rate("drive_written_bytes", unit=1e9)),
    Panel("dirty pages", "MiB", _gauge("dirty_bytes", unit=MIB)),
    Panel(
        "pages scanned by kswapd and by processes",
        "1000/s",
        _rate("pgscan_kswapd", "pgscan_direct", unit=1e3),
    ),
    Panel("swapped in and out", "MiB/s", _rate("pswpin", "pswpout", unit=MIB / mmap.PAGESIZE)),
    Panel("memory of the processes", "GiB", _gauge("rss_bytes", unit=GIB)),
    Panel("available on the host", "GiB", _gauge("available_bytes", unit=GIB)),
    Panel("iteration times", "ms", _iterations, dots=True),
)
