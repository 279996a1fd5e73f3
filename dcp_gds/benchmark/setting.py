"""Setting: how a tool moves a file, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dcp_gds.benchmark.measure import Clocks

__all__ = ["Moved", "Setting", "Tool"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine as its tool calls it, the bytes of a block, and blocks in flight."""

    engine: str
    block_bytes: int
    depth: int

    def __str__(self) -> str:
        return f"{self.engine}, {self.block_bytes / MIB:g} MiB, depth {self.depth}"


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that were moved, and the clocks until they were durable or read."""

    length: int
    clocks: Clocks

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second."""
        return self.length / self.clocks.seconds / 1e9


class Tool(Protocol):
    """Writes and reads one file as fast as it can, with no checkpoint in it."""

    @property
    def name(self) -> str:
        """As tables show it."""

    def write(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        """Make a file of `length` bytes and sync it."""

    def read(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        """Read the first `length` bytes of a file."""
