"""Storm box: a memory cgroup with a limit and a swap file; without root there is neither."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

__all__ = ["storm_box"]

MEMORY = Path("/sys/fs/cgroup/memory")


@contextlib.contextmanager
def storm_box(directory: Path, *, limit: int, swap: int) -> Iterator[Path | None]:
    """Yield the cgroup's list of processes, or None where there cannot be one.

    Parameters
    ----------
    limit, swap
        Bytes of memory that the cgroup may take, and bytes of the swap file.
    """
    if os.geteuid() != 0 or not (MEMORY / "memory.limit_in_bytes").exists():
        yield None
        return
    group = MEMORY / f"dcp-gds-storm-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit), encoding="ascii")
        with _swap_file(directory / "swap", length=swap):
            yield group / "cgroup.procs"
    finally:
        group.rmdir()


@contextlib.contextmanager
def _swap_file(path: Path, *, length: int) -> Iterator[None]:
    """A swap file in use. It must not have holes."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, length)
    try:
        path.chmod(0o600)
        subprocess.run(["mkswap", path], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", path], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", path], check=True)
    finally:
        path.unlink()
