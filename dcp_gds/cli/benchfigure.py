"""Benchfigure: a benchmark's speeds and CPU times as one picture."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dcp_gds.benchmark.comparison import Comparison
from dcp_gds.benchmark.measure import Spread
from dcp_gds.benchmark.result import rows_of
from dcp_gds.benchmark.session import Session
from dcp_gds.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

WIDTH_IN, ROW_IN, MARGIN_IN, DPI = 11.0, 0.42, 1.1, 90
TOOL_COLOUR, OUR_COLOUR, STOCK_COLOUR, LINE_COLOUR = "#8a8a8a", "#1f5fa8", "#b3331d", "#333333"


def draw(session: Session) -> bytes:
    """Return a PNG: speeds on the left with the ceiling as a line, CPU time on the right.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"{error}; install what draws: pip install 'dcp-gds[report]'") from error
    sides = (("durable write", session.writes), ("cold read", session.reads))
    counts = [len(side.ways) for _, side in sides]
    figure = Figure(
        figsize=(WIDTH_IN, 2 * MARGIN_IN + ROW_IN * sum(counts)), dpi=DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, 2, sharey="row", squeeze=False, height_ratios=counts)
    for axes, (title, side) in zip(grid, sides, strict=True):
        _draw_side(axes[0], axes[1], side, title)
    grid[1][0].set_xlabel("GB/s; whiskers: all rounds; line: the ceiling")
    grid[1][1].set_xlabel("CPU seconds per GB")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _draw_side(speed: Axes, cpu: Axes, side: Comparison, title: str) -> None:
    """Writing or reading."""
    rows = rows_of(side)
    names = [row.contender for row in rows]
    colours = [_colour(name) for name in names]
    _bars(speed, names, [row.gb_per_s for row in rows], colours)
    _bars(cpu, names, [row.cpu_s_per_gb for row in rows], colours)
    ceiling = next(row.gb_per_s.median for row in rows if row.contender == side.ceiling)
    speed.axvline(ceiling, color=LINE_COLOUR, linewidth=1, linestyle="--")
    speed.invert_yaxis()
    speed.set_title(title, fontsize=10, loc="left")


def _bars(axes: Axes, names: list[str], spreads: list[Spread], colours: list[str]) -> None:
    """A bar for each median, with its extremes."""
    medians = [spread.median for spread in spreads]
    whiskers = [
        [spread.median - spread.low for spread in spreads],
        [spread.high - spread.median for spread in spreads],
    ]
    axes.barh(names, medians, color=colours, xerr=whiskers, ecolor=LINE_COLOUR, capsize=2)
    axes.tick_params(labelsize=8)


def _colour(name: str) -> str:
    if name.startswith("GDS"):
        return OUR_COLOUR
    return STOCK_COLOUR if name.startswith("stock") else TOOL_COLOUR
