"""Sweep: tries a tool's settings once each, and so fixes them before anything is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.benchmark.machine import drop_caches
from dcp_gds.benchmark.setting import MIB, Setting, Tool
from dcp_gds.errors import StorageFullError, TransferError

__all__ = ["Grid", "Point", "best", "sweep"]


@dataclass(frozen=True, slots=True)
class Grid:
    """Bytes of the file that a setting is tried with, and the blocks and depths that are tried."""

    length: int
    block_bytes: tuple[int, ...]
    depths: tuple[int, ...]

    @classmethod
    def quick(cls) -> Grid:
        """Ends within a quarter of a minute for each engine, on a drive of a GB/s."""
        return cls(256 * MIB, (MIB, 8 * MIB), (4, 16))

    @classmethod
    def full(cls) -> Grid:
        """What local drives reach their bandwidth with lies within."""
        return cls(1024 * MIB, (MIB, 4 * MIB, 8 * MIB), (4, 8, 32))

    def settings(self, engines: Iterable[str]) -> list[Setting]:
        """All settings of some engines."""
        return [
            Setting(engine, block_bytes, depth)
            for engine in engines
            for block_bytes in self.block_bytes
            for depth in self.depths
        ]


@dataclass(frozen=True, slots=True)
class Point:
    """A setting that was tried: GB/s both ways, or why it failed."""

    tool: str
    setting: Setting
    write_gb_per_s: float | None = None
    read_gb_per_s: float | None = None
    error: str = ""


def sweep(
    tool: Tool, engines: Iterable[str], grid: Grid, *, directory: Path, direct: bool
) -> list[Point]:
    """Try every setting: write a file, and read it back from the drive.

    Raises
    ------
    StorageFullError
        If there is no room. Any other failure is kept in its point: an engine that the kernel
        refuses is no reason to stop.
    """
    return [
        _try(tool, setting, directory / "sweep", length=grid.length, direct=direct)
        for setting in grid.settings(engines)
    ]


def best(points: Iterable[Point], rate: Callable[[Point], float | None]) -> Setting | None:
    """The setting of the point with the highest rate; None if all have failed."""
    rates = [(value, point.setting) for point in points if (value := rate(point)) is not None]
    return max(rates, key=lambda each: each[0])[1] if rates else None


def _try(tool: Tool, setting: Setting, path: Path, *, length: int, direct: bool) -> Point:
    """One point."""
    point = Point(tool.name, setting)
    try:
        written = tool.write(path, setting, length=length, direct=direct)
        drop_caches(path.parent)
        read = tool.read(path, setting, length=length, direct=direct)
    except StorageFullError:
        raise
    except TransferError as error:
        return dataclasses.replace(point, error=str(error))
    finally:
        path.unlink(missing_ok=True)
    return dataclasses.replace(point, write_gb_per_s=written.gb_per_s, read_gb_per_s=read.gb_per_s)
