"""Contender: who writes or reads in a comparison, and what one run of it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from dcp_gds.benchmark import solo
from dcp_gds.benchmark.measure import Clocks, timed
from dcp_gds.benchmark.memory import PeakMemory
from dcp_gds.benchmark.setting import Setting, Tool
from dcp_gds.benchmark.solo import State
from dcp_gds.checkpoint.reader import GDSReader
from dcp_gds.checkpoint.writer import GDSWriter

__all__ = [
    "STOCK_READER",
    "STOCK_WRITER",
    "Act",
    "Contender",
    "dcp_loader",
    "dcp_saver",
    "file_reader",
    "file_writer",
    "saver_in_background",
]

STOCK_WRITER, STOCK_READER = "stock FileSystemWriter", "stock FileSystemReader"
# The one file of those that write no checkpoint.
FILE = "file"


@dataclass(frozen=True, slots=True)
class Act:
    """What one run says of itself.

    Parameters
    ----------
    engine_bytes
        Bytes by the engine that moved them, as its report has it; empty for who makes no report.
    blocked_s
        How long the caller was held; None for who has no caller.
    peak_bytes
        Growth of resident memory, None where it is unknown.
    """

    clocks: Clocks
    engine_bytes: dict[str, int]
    blocked_s: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, and what it does with a directory: fill it, or read what is in it.

    `direct` tells that it means to go past the page cache.
    """

    name: str
    act: Callable[[Path], Act]
    direct: bool


def file_writer(tool: Tool, setting: Setting, *, length: int, direct: bool) -> Contender:
    """A tool that writes one file."""

    def act(directory: Path) -> Act:
        moved = tool.write(directory / FILE, setting, length=length, direct=direct)
        return Act(moved.clocks, {})

    return Contender(f"{tool.name} ({setting})", act, direct=direct)


def file_reader(tool: Tool, setting: Setting, *, length: int, direct: bool) -> Contender:
    """A tool that reads the file that a tool has written."""

    def act(directory: Path) -> Act:
        moved = tool.read(directory / FILE, setting, length=length, direct=direct)
        return Act(moved.clocks, {})

    return Contender(f"{tool.name} ({setting})", act, direct=direct)


def dcp_saver(state: State, *, engine: str | None) -> Contender:
    """A durable save, by one of our engines, or by stock (None) at its default."""

    def act(directory: Path) -> Act:
        writer = _writer(directory, engine)
        with PeakMemory() as memory:
            clocks = timed(lambda: solo.save(state, writer))
        return Act(clocks, _moved_by(writer), clocks.seconds, memory.grown_bytes)

    name = STOCK_WRITER if engine is None else f"GDSWriter, {engine}"
    return Contender(name, act, direct=engine not in (None, "buffered"))


def saver_in_background(state: State, *, stock: bool, direct: bool) -> Contender:
    """An asynchronous save: who is held, and for how long.

    `direct` tells whether direct I/O is honoured where it saves: ours uses it then.
    """

    def act(directory: Path) -> Act:
        writer = _writer(directory, None if stock else "auto")
        blocked: list[float] = []
        with PeakMemory() as memory:
            clocks = timed(lambda: blocked.append(solo.async_save(state, writer)))
        return Act(clocks, _moved_by(writer), blocked[0], memory.grown_bytes)

    name = STOCK_WRITER if stock else "GDSWriter"
    return Contender(f"{name}, async_save", act, direct=direct and not stock)


def dcp_loader(target: State, *, engine: str | None) -> Contender:
    """A load into tensors that exist, by one of our engines, or by stock (None)."""

    def act(directory: Path) -> Act:
        reader: StorageReader = (
            FileSystemReader(directory) if engine is None else GDSReader(directory, engine=engine)
        )
        with PeakMemory() as memory:
            clocks = timed(lambda: solo.load(target, reader))
        return Act(clocks, _moved_by(reader), clocks.seconds, memory.grown_bytes)

    name = STOCK_READER if engine is None else f"GDSReader, {engine}"
    return Contender(name, act, direct=engine not in (None, "buffered"))


def _writer(directory: Path, engine: str | None) -> StorageWriter:
    return FileSystemWriter(directory) if engine is None else GDSWriter(directory, engine=engine)


def _moved_by(plugin: object) -> dict[str, int]:
    """What a report of ours says of the engines."""
    if isinstance(plugin, GDSWriter | GDSReader) and plugin.report is not None:
        return dict(plugin.report.bytes_by_engine)
    return {}
