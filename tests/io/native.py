"""Native engine by itself: what its tests share to submit to it and to see its threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcp_gds import _core
from tests.io.engine_suite import Memory

__all__ = ["engine_threads", "opened", "submit"]


def submit(
    engine: _core.Engine,
    fd: int,
    memory: Memory,
    *,
    write: bool = False,
    length: int,
    shift: int = 0,
    offset: int = 0,
    alignment: int = 1,
) -> None:
    """Submit a transfer with checksum, ticket 7."""
    engine.submit(
        ticket=7,
        write=write,
        fd=fd,
        address=memory.address + shift,
        length=length,
        offset=offset,
        alignment=alignment,
        checksum=True,
    )


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """An open descriptor."""
    fd = os.open(path, flags, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def engine_threads() -> list[Path]:
    """Return the /proc directory of each thread that a native engine has started."""
    found: list[Path] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended since it was listed.
            continue
        if name == "dcp_gds_io":
            found.append(task)
    return found
