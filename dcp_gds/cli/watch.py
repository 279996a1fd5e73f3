"""Watch: the command that watches the host's memory, and says what it went through."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from dcp_gds.cli.watchview import WatchView, summary_table
from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.exporter import serve
from dcp_gds.hostmem.memoryreport import MemoryReport, report_of
from dcp_gds.hostmem.units import parse_seconds
from dcp_gds.hostmem.verdict import Verdict
from dcp_gds.hostmem.watch import HostMemoryWatch

__all__ = ["configure", "run"]

EXIT_CALM = 0
EXIT_HAPPENED = 1
# How often the view is drawn anew and the end is looked for. A drawing costs 5 ms of CPU.
LOOK_S = 1.0
VERDICT_WORDS = {
    "dirty": Verdict.DIRTY,
    "kswapd": Verdict.SCANNING,
    "swapping": Verdict.SWAPPING,
}
DEFAULT_FAIL_ON = ("swapping",)


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Watch the kernel's counters of memory: dirty pages, reclaim by kswapd and by processes,"
        " swap, stalls, the memory cgroup, and the drives. Ends after --duration, with the"
        " processes of --pid, or at an interrupt, and then says whether all was calm."
    )
    parser.epilog = (
        "Exit status: 0, nothing of what --fail-on names happened; 1, something of it did;"
        " 2, it cannot watch. --fail-on takes dirty, kswapd and swapping, each with all that is"
        " worse, and the name of any counter, such as pgscan_kswapd or allocstall."
    )
    parser.add_argument(
        "--pid",
        type=int,
        action="append",
        metavar="PID",
        help="add up the memory of this process and watch its cgroup; may be repeated",
    )
    parser.add_argument(
        "--interval", default="100ms", metavar="TIME", help="between two samples (100ms)"
    )
    parser.add_argument("--duration", metavar="TIME", help="end after this time, such as 90s")
    parser.add_argument("--jsonl", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument(
        "--prometheus",
        metavar="[ADDRESS:]PORT",
        help="serve the last sample there; only to this host if no address is given",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        metavar="WHAT",
        help="what makes the exit status 1; may be repeated (swapping)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def run(arguments: argparse.Namespace) -> int:
    """Watch, and return the exit status."""
    duration_s = (
        None if arguments.duration is None else parse_seconds(arguments.duration, name="--duration")
    )
    pids = tuple(arguments.pid or ())
    for pid in pids:
        if not Path(f"/proc/{pid}").exists():
            raise ConfigError(f"there is no process {pid}; --pid takes one that runs")
    watch = HostMemoryWatch(
        interval_s=parse_seconds(arguments.interval, name="--interval"),
        jsonl=arguments.jsonl,
        pids=pids,
    )
    fail_on = tuple(arguments.fail_on or DEFAULT_FAIL_ON)
    watch.tick()
    _check_names(fail_on, watch)
    # A signal is an end like any other, from the moment on at which it watches.
    with _ended_by_signals(), watch, _served(watch, arguments.prometheus):
        _wait(watch, pids=pids, duration_s=duration_s, quiet=arguments.json)
    if watch.log_error is not None:
        raise watch.log_error
    report = report_of(watch.change())
    happened = [name for name in fail_on if _happened(name, report)]
    if arguments.json:
        value = dataclasses.asdict(report) | {"failed_on": happened}
        sys.stdout.write(json.dumps(value, sort_keys=True) + "\n")
    else:
        Console(soft_wrap=True, highlight=False).print(
            summary_table(watch.change()), *_lines(report, happened), sep="\n"
        )
    return EXIT_HAPPENED if happened else EXIT_CALM


def _wait(
    watch: HostMemoryWatch, *, pids: tuple[int, ...], duration_s: float | None, quiet: bool
) -> None:
    """Look on until the time is over or the processes are gone."""
    end_s = None if duration_s is None else time.monotonic() + duration_s
    with WatchView(watch, shown=not quiet and sys.stderr.isatty()) as view:
        while True:
            left_s = LOOK_S if end_s is None else min(LOOK_S, end_s - time.monotonic())
            if left_s <= 0 or (pids and not any(Path(f"/proc/{pid}").exists() for pid in pids)):
                return
            time.sleep(left_s)
            view.draw()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block at SIGINT, unless whoever started this process had it ignored, or SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _served(watch: HostMemoryWatch, where: str | None) -> Iterator[None]:
    """Serve to Prometheus if that is wanted."""
    if where is None:
        yield
        return
    address, _, port = where.rpartition(":")
    if not port.isascii() or not port.isdigit():
        raise ConfigError(f"--prometheus is {where!r}; expected PORT or ADDRESS:PORT")
    with serve(watch, port=int(port), address=address or "127.0.0.1"):
        yield


def _check_names(names: tuple[str, ...], watch: HostMemoryWatch) -> None:
    """Refuse a counter that this kernel does not have: it would never move."""
    known = watch.change().deltas
    for name in names:
        if name not in VERDICT_WORDS and name not in known:
            raise ConfigError(
                f"--fail-on is {name!r}; expected one of {', '.join(VERDICT_WORDS)}"
                f" or a counter that this kernel has: {', '.join(sorted(known))}"
            )


def _happened(name: str, report: MemoryReport) -> bool:
    """Whether what --fail-on names happened."""
    if name not in VERDICT_WORDS:
        return report.deltas.get(name, 0) > 0
    order = tuple(Verdict)
    return order.index(report.verdict) >= order.index(VERDICT_WORDS[name])


def _lines(report: MemoryReport, happened: list[str]) -> Iterator[str]:
    """The verdict, its reasons, and what to do."""
    yield f"verdict: {report.verdict} ({report.samples} samples in {report.seconds:.1f} s)"
    yield from (f"  because {reason}" for reason in report.reasons)
    yield from (f"  advice: {each}" for each in report.advice)
    if happened:
        yield f"failed on: {', '.join(happened)}"
