"""Memory cgroup: a limit on the memory of one process, and what the kernel counted in it.

Needs root and the memory controller of cgroups version 1.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.filesystems import missing

__all__ = ["MemoryCgroup", "memory_cgroup"]

TOP = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A cgroup of its own."""

    directory: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, from its first instruction on."""
        enter = f'echo $$ > {self.directory}/cgroup.procs; exec "$@"'
        return subprocess.run(
            ["sh", "-c", enter, "sh", *command], capture_output=True, text=True, check=False
        )

    @property
    def failures(self) -> int:
        """How often the limit was hit."""
        return int((self.directory / "memory.failcnt").read_text())


@contextmanager
def memory_cgroup(*, limit: int) -> Iterator[MemoryCgroup]:
    """A cgroup that may take `limit` bytes."""
    if os.geteuid() != 0 or not (TOP / "memory.limit_in_bytes").exists():
        missing("root and the memory controller of cgroups version 1")
    directory = TOP / f"dcp-gds-{uuid.uuid4().hex}"
    directory.mkdir()
    try:
        (directory / "memory.limit_in_bytes").write_text(str(limit))
        yield MemoryCgroup(directory)
    finally:
        directory.rmdir()
