"""Session: one benchmark of a directory, from the sweep to the last round."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from dcp_gds.benchmark import contender
from dcp_gds.benchmark.bare import BARE, BareTool
from dcp_gds.benchmark.comparison import Comparison, Say, compare_readers, compare_writers
from dcp_gds.benchmark.contender import STOCK_READER
from dcp_gds.benchmark.fio import INSTALL, Fio
from dcp_gds.benchmark.machine import drop_caches
from dcp_gds.benchmark.scope import TENSORS, Scope
from dcp_gds.benchmark.setting import Setting, Tool
from dcp_gds.benchmark.solo import State, make_state
from dcp_gds.benchmark.sweep import Point, best, sweep
from dcp_gds.benchmark.target import Target, check_room
from dcp_gds.config import ENGINE_CHOICES
from dcp_gds.errors import CorruptCheckpointError, TransferError, UnsupportedError
from dcp_gds.io.selection import select_for_save

__all__ = ["Session", "measure"]

# Engines that take host memory; `auto` is one of them.
HOST_ENGINES = [name for name in ENGINE_CHOICES if name not in ("auto", "gds")]
PREFIX = "dcp-gds-bench-"


@dataclass(frozen=True, slots=True)
class Session:
    """The points of the sweep, the settings they led to, both comparisons, and what to know.

    `settings` has those of writing and of reading, by tool.
    """

    points: tuple[Point, ...]
    settings: dict[str, tuple[Setting, Setting]]
    writes: Comparison
    reads: Comparison
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    """Who takes part in the comparisons, and where."""

    tools: dict[str, Tool]
    settings: dict[str, tuple[Setting, Setting]]
    engines: Sequence[str]
    scope: Scope
    directory: Path
    direct: bool
    say: Say


def measure(target: Target, scope: Scope, *, fio: Fio | None, say: Say) -> Session:
    """Sweep, then compare writers, then readers. All files are gone when this returns or raises.

    Parameters
    ----------
    fio
        None where it is not installed: the ceiling is then our own bare writer's.
    say
        Told what is going on.

    Raises
    ------
    StorageFullError
        Before anything is written, if there is no room.
    TransferError
        If no tool can move a file, or one fails in a comparison, or a save or a load.
    CorruptCheckpointError
        If a load gave other bytes than were saved.
    """
    check_room(target, length=scope.disk_bytes)
    with tempfile.TemporaryDirectory(dir=target.path, prefix=PREFIX) as name:
        directory = Path(name)
        tools, notes = _tools(fio)
        points = _sweep_all(tools, scope, directory, direct=target.direct, say=say)
        settings = _settings(points)
        if not settings:
            raise _nothing_worked(points, target.path)
        notes += [
            f"{tool} could not be used here: {next(p.error for p in points if p.tool == tool)}"
            for tool in tools
            if tool not in settings
        ]
        engines, refused = _engines(directory)
        notes += refused
        if not scope.background:
            notes.append("asynchronous saves were left out, to be quick or for lack of memory")
        state = make_state(length=scope.length, tensors=TENSORS, memory_bytes=scope.memory_bytes)
        running = {name: tools[name][0] for name in settings}
        field = _Field(running, settings, engines, scope, directory, target.direct, say)
        say("warming up")
        _warm_up(directory, engines)
        writes = _compare_writes(state, field)
        reads, dropped = _compare_reads(state, field)
    notes.append(
        "caches were dropped before reads"
        + ("" if dropped else ", but inodes and directories were not: that needs root")
    )
    return Session(points, settings, writes, reads, tuple(notes))


def _tools(fio: Fio | None) -> tuple[dict[str, tuple[Tool, Sequence[str]]], list[str]]:
    """The tools with their engines, and what is missing."""
    tools: dict[str, tuple[Tool, Sequence[str]]] = {BARE: (BareTool(), ("threads",))}
    if fio is None:
        return tools, [f"fio is not installed: the ceiling is our own bare writer's; {INSTALL}"]
    if not fio.engines:
        return tools, [f"{fio.program} ({fio.version}) has none of the engines that are tried"]
    return {fio.name: (fio, fio.engines)} | tools, []


def _sweep_all(
    tools: dict[str, tuple[Tool, Sequence[str]]],
    scope: Scope,
    directory: Path,
    *,
    direct: bool,
    say: Say,
) -> tuple[Point, ...]:
    """Every setting of every tool."""
    points: list[Point] = []
    for name, (tool, engines) in tools.items():
        say(f"trying settings of {name}")
        points += sweep(tool, engines, scope.grid, directory=directory, direct=direct)
    return tuple(points)


def _settings(points: Sequence[Point]) -> dict[str, tuple[Setting, Setting]]:
    """The best settings of each tool, to write and to read."""
    chosen = {}
    for tool in dict.fromkeys(point.tool for point in points):
        own = [point for point in points if point.tool == tool]
        write = best(own, lambda point: point.write_gb_per_s)
        read = best(own, lambda point: point.read_gb_per_s)
        if write is not None and read is not None:
            chosen[tool] = (write, read)
    return chosen


def _nothing_worked(points: Sequence[Point], path: Path) -> TransferError:
    """Not even the bare writer could move a file: each tool's first error."""
    errors = {point.tool: point.error for point in reversed(points)}
    said = "; ".join(f"{tool}: {error}" for tool, error in reversed(errors.items()))
    return TransferError(errno.EIO, f"no file could be written and read: {said}", path)


def _engines(directory: Path) -> tuple[list[str], list[str]]:
    """Those of our engines for host memory that run here, and why others do not."""
    running, notes = [], []
    for name in HOST_ENGINES:
        try:
            select_for_save(directory, requested=name)
        except UnsupportedError as error:
            notes.append(f"engine {name} does not run here: {error}")
        else:
            running.append(name)
    return running, notes


def _warm_up(directory: Path, engines: Sequence[str]) -> None:
    """The first save and load of each pay for imports, threads and envelopes of the process."""
    small = make_state(length=TENSORS << 20, tensors=TENSORS)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        for number, engine in enumerate([*engines, None]):
            place = Path(name, str(number))
            contender.dcp_saver(small, engine=engine).act(place)
            contender.dcp_loader(small, engine=engine).act(place)


def _compare_writes(state: State, field: _Field) -> Comparison:
    """Tools, our engines and stock, all of which write the same bytes."""
    files = [
        contender.file_writer(
            tool, field.settings[name][0], length=field.scope.length, direct=field.direct
        )
        for name, tool in field.tools.items()
    ]
    savers = [contender.dcp_saver(state, engine=engine) for engine in [*field.engines, None]]
    if field.scope.background:
        savers += [
            contender.saver_in_background(state, stock=stock, direct=field.direct)
            for stock in (False, True)
        ]
    return compare_writers(
        [*files, *savers],
        tools=[each.name for each in files],
        rounds=field.scope.rounds,
        length=field.scope.length,
        directory=field.directory,
        say=field.say,
    )


def _compare_reads(state: State, field: _Field) -> tuple[Comparison, bool]:
    """The same for reading: tools read a file, we and stock what each has saved itself."""
    into = make_state(
        length=field.scope.length, tensors=TENSORS, memory_bytes=field.scope.memory_bytes
    )
    files = [
        contender.file_reader(
            tool, field.settings[name][1], length=field.scope.length, direct=field.direct
        )
        for name, tool in field.tools.items()
    ]
    loaders = [contender.dcp_loader(into, engine=engine) for engine in [*field.engines, None]]
    with _sources(state, field) as (file, ours, stock):
        dropped = drop_caches(field.directory)
        sources = {each.name: file for each in files}
        sources |= {each.name: stock if each.name == STOCK_READER else ours for each in loaders}

        def check(name: str) -> None:
            if sources[name] == file:
                return
            for key, tensor in state.items():
                if not torch.equal(into[key], tensor):
                    raise CorruptCheckpointError(f"{name} loaded {key} otherwise than it was saved")
            for tensor in into.values():
                tensor.zero_()

        compared = compare_readers(
            [*files, *loaders],
            sources,
            check,
            tools=[each.name for each in files],
            rounds=field.scope.rounds,
            length=field.scope.length,
            say=field.say,
        )
    return compared, dropped


@contextmanager
def _sources(state: State, field: _Field) -> Iterator[tuple[Path, Path, Path]]:
    """Directories with a file, a checkpoint of ours and one of stock's."""
    with tempfile.TemporaryDirectory(dir=field.directory) as name:
        file, ours, stock = (Path(name, each) for each in ("file", "ours", "stock"))
        file.mkdir()
        contender.file_writer(
            BareTool(),
            Setting("threads", 1 << 20, 8),
            length=field.scope.length,
            direct=field.direct,
        ).act(file)
        contender.dcp_saver(state, engine=field.engines[0]).act(ours)
        contender.dcp_saver(state, engine=None).act(stock)
        yield file, ours, stock
