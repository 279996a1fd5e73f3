"""Storm plot: one picture of what saves did to a training loop and to the host's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["plot_storms"]

PAGE_MIB = 4096 / (1 << 20)
STOCK_COLOR, OUR_COLOR, BLOCKED_COLOR = "#c0392b", "#1f77b4", "#f5b041"


def plot_storms(storms: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw a column for each contender: iteration times above, swapped and dirty memory below."""
    figure = Figure(figsize=(12.0, 5.6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(2, len(storms), sharex=True, sharey="row", squeeze=False)
    for column, (name, storm) in enumerate(storms.items()):
        color = STOCK_COLOR if name.startswith("stock") else OUR_COLOR
        top, bottom = axes[0][column], axes[1][column]
        asked = storm["asked"]
        ended = storm["saved"] - asked
        for axis in (top, bottom):
            axis.axvspan(0, storm["blocked_s"], color=BLOCKED_COLOR, alpha=0.5, label="blocked")
            axis.axvline(ended, color="black", linestyle=":", linewidth=1, label="durable")
            axis.grid(alpha=0.3)
        starts = [each["began"] - asked for each in storm["iterations"]]
        top.step(starts, [each["seconds"] for each in storm["iterations"]], color, where="post")
        top.set_title(
            f"{name}\nblocked {storm['blocked_s']:.1f} s, saved in {ended:.1f} s\n"
            f"{storm['swapped_pages']:,} pages swapped out",
            fontsize=9,
        )
        samples = storm["samples"]
        times = [sample["time"] - asked for sample in samples]
        first = samples[0]["pswpout"]
        swapped = [(sample["pswpout"] - first) * PAGE_MIB for sample in samples]
        dirty = [(sample["nr_dirty"] + sample["nr_writeback"]) * PAGE_MIB for sample in samples]
        bottom.plot(times, swapped, color=color, label="swapped out so far")
        bottom.plot(times, dirty, color="gray", linewidth=1, label="dirty and in writeback")
        bottom.set_xlabel("seconds since async_save")
    axes[0][0].set_ylabel("seconds per iteration")
    axes[1][0].set_ylabel("MiB")
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize=8)
    axes[1][0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
