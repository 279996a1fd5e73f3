"""Report: the command that makes a page and a picture of one or two runs."""

from __future__ import annotations

import argparse
import base64
import html
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dcp_gds.cli.reportfigure import draw
from dcp_gds.errors import TransferError
from dcp_gds.hostmem.iterations import IterationTimes, Spread
from dcp_gds.hostmem.memoryreport import MemoryReport, report_of
from dcp_gds.hostmem.runlog import Run, read_run
from dcp_gds.hostmem.tally import Tally
from dcp_gds.hostmem.units import format_bytes

__all__ = ["configure", "run"]

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em 1em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}tr{border-bottom:1px solid #ddd}"
    "img{max-width:100%}"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Draw runs that `dcp-gds watch --jsonl` or HostMemoryWatch(jsonl=...) has recorded: what"
        " the drives took, dirty pages, reclaim, swap, host memory and iteration times, with saves"
        " shaded. Makes one HTML page that needs nothing else, and the picture as a PNG."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.jsonl", help="one or two runs")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report"),
        metavar="NAME",
        help="writes NAME.html and NAME.png (report)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Draw the runs, name the files, and return 0."""
    runs = [read_run(path) for path in arguments.runs]
    png = draw(runs)
    files = {
        arguments.output.with_name(f"{arguments.output.name}.html"): _page(runs, png).encode(),
        arguments.output.with_name(f"{arguments.output.name}.png"): png,
    }
    for path, content in files.items():
        try:
            path.write_bytes(content)
        except OSError as error:
            raise TransferError(error.errno or 0, error.strerror or str(error), path) from error
        sys.stdout.write(f"{path}\n")
    return 0


def _page(runs: Sequence[Run], png: bytes) -> str:
    """The page, with the picture in it."""
    columns = [_facts(each) for each in runs]
    rows = [
        f"<tr><th>{html.escape(label)}</th>"
        + "".join(f"<td>{html.escape(facts.get(label, 'unknown'))}</td>" for facts in columns)
        + "</tr>"
        for label in dict.fromkeys(label for facts in columns for label in facts)
    ]
    names = " and ".join(html.escape(each.path.name) for each in runs)
    picture = base64.b64encode(png).decode("ascii")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>Host memory: {names}</title><style>{STYLE}</style></head><body>"
        f"<h1>Host memory: {names}</h1><table>{''.join(rows)}</table>"
        f'<p><img alt="Counters of memory over time" src="data:image/png;base64,{picture}"></p>'
        "</body></html>\n"
    )


def _facts(run: Run) -> dict[str, str]:
    """A run in numbers."""
    tally = Tally(run.samples[0])
    for sample in run.samples[1:]:
        tally.add(sample)
    times = IterationTimes()
    for iteration in run.iterations:
        times.add(iteration.seconds, in_save=iteration.in_save)
    report = report_of(tally.change(), iterations=times.summary())
    return dict(_rows(run, report))


def _rows(run: Run, report: MemoryReport) -> Iterator[tuple[str, str]]:
    """Labels and values."""
    yield "run", run.path.name
    yield "verdict", report.verdict
    yield "watched", f"{report.seconds:.1f} s, {report.samples} samples, {len(run.saves)} saves"
    for label, name in (("most dirty", "dirty_bytes"), ("most memory", "rss_bytes")):
        if name in report.high:
            yield label, format_bytes(report.high[name])
    if "available_bytes" in report.low:
        yield "least available", format_bytes(report.low["available_bytes"])
    for label, name in (("scanned by kswapd", "pgscan_kswapd"), ("swapped out", "pswpout")):
        if name in report.deltas:
            yield label, f"{report.deltas[name]:,} pages"
    times = report.iterations
    if times is not None:
        for label, spread in (("outside saves", times.outside), ("in saves", times.inside)):
            if spread is not None:
                yield f"iterations {label}", _spread(spread)
        if times.inflation is not None:
            yield "inflation by saves", f"{times.inflation:.2f} times"
    if run.skipped:
        yield "lines that could not be read", str(run.skipped)


def _spread(spread: Spread) -> str:
    """Times in one cell."""
    return (
        f"{spread.median_s * 1e3:.1f} ms median, {spread.p99_s * 1e3:.1f} p99,"
        f" {spread.worst_s * 1e3:.1f} worst of {spread.count:,}"
    )
