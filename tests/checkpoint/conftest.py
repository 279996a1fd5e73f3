"""Fixtures of the checkpoint tests: filesystems, and a process without dcp_gds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.checkpoint.stock_reader import Archive, load_flat, read_archives
from tests.filesystems import mounts, session_mounts
from tests.ranks import Ranks

__all__ = ["mounts", "session_mounts"]

ArchiveKey = tuple[str, tuple[int, ...]]


@pytest.fixture(scope="session")
def stock_process() -> Iterator[Ranks]:
    """A process in which dcp_gds cannot be imported; it runs functions of `stock_reader`."""
    with Ranks(1) as process:
        yield process


@pytest.fixture(scope="session")
def stock_load(stock_process: Ranks) -> Callable[[Path], dict[str, object]]:
    """Loads a checkpoint with DCP's own reader in the process without dcp_gds."""
    return lambda path: stock_process.run(load_flat, path)[0]


@pytest.fixture(scope="session")
def stock_archives(stock_process: Ranks) -> Callable[[Path], dict[ArchiveKey, Archive]]:
    """Reads every tensor item by itself in the process without dcp_gds."""
    return lambda path: stock_process.run(read_archives, path)[0]
