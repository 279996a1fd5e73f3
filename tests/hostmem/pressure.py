"""Pressure: a memory cgroup with little memory and a swap file, for as long as a test runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.filesystems import missing

__all__ = ["memory_cgroup", "swap_file"]

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def swap_file(directory: Path, *, length: int) -> Iterator[None]:
    """Give the host a swap file, and take it away again."""
    if os.geteuid() != 0:
        missing("root, to use a swap file")
    for program in ("mkswap", "swapon", "swapoff"):
        if shutil.which(program) is None:
            missing(program)
    path = Path(tempfile.mkdtemp(dir=directory)) / "swap"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, length)
    path.chmod(0o600)
    subprocess.run(["mkswap", str(path)], check=True, capture_output=True)
    done = subprocess.run(["swapon", str(path)], check=False, capture_output=True, text=True)
    try:
        if done.returncode:
            missing(f"a filesystem for swap files: {done.stderr.strip()}")
        yield
    finally:
        if not done.returncode:
            subprocess.run(["swapoff", str(path)], check=True)
        shutil.rmtree(path.parent)


@contextlib.contextmanager
def memory_cgroup(name: str, *, limit: int) -> Iterator[Path]:
    """Make a memory cgroup that may hold `limit` bytes; write a pid into its cgroup.procs."""
    if os.geteuid() != 0:
        missing("root, to make cgroups")
    v1 = (V1 / "memory.limit_in_bytes").exists()
    if not v1 and "memory" not in _text(V2 / "cgroup.subtree_control").split():
        missing("a memory controller for cgroups")
    directory = (V1 if v1 else V2) / f"{name}-{os.getpid()}"
    directory.mkdir()
    try:
        (directory / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))
        yield directory
    finally:
        # Its processes have ended; what they left charged goes to the parent.
        directory.rmdir()


def _text(path: Path) -> str:
    """A file, or nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""
