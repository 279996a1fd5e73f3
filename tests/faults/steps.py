"""Steps: the places of a save, noted as it reaches them, where a test may stop it.

The functions that a save calls are wrapped in this process, for good: only a process that ends
with its save may use this.
"""

from __future__ import annotations

import fcntl
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dcp_gds import GDSWriter
from dcp_gds.checkpoint import commit, savecommit, shardsave, writer
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["Steps"]

PLACES: tuple[tuple[Any, str, str], ...] = (
    (GDSWriter, "stage", "stage"),
    (GDSWriter, "prepare_local_plan", "plan"),
    (writer, "create_directory", "create directory"),
    (shardsave, "create_shard_file", "create shard file"),
    (ShardFile, "allocate", "allocate"),
    (TransferQueue, "submit", "transfer"),
    (ShardFile, "truncate", "truncate"),
    (ShardFile, "sync", "sync shard file"),
    (ShardFile, "close", "close shard file"),
    (commit, "check_complete", "check items"),
    (commit, "check_shard_files", "check shard files"),
    (commit, "publish", "publish"),
    (savecommit, "leftovers_of", "look for leftovers"),
    (fcntl, "flock", "lock"),
    (os, "mkdir", "make"),
    (os, "fsync", "fsync"),
    (os, "rename", "rename"),
    (os, "unlink", "remove"),
)
SYSTEM_CALLS = frozenset({"lock", "make", "fsync", "rename", "remove"})


class Steps:
    """Notes each step as "before rename 1" or "after rename 1", the number counting its calls.

    Parameters
    ----------
    directory
        The checkpoint's: system calls count that are about it, something in it, or its parent.
    reached
        Called with each step's name, at most one at a time.
    """

    def __init__(self, directory: Path, reached: Callable[[str], None]) -> None:
        self._directory = directory
        self._reached = reached
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        for owner, attribute, name in PLACES:
            setattr(owner, attribute, self._wrapped(getattr(owner, attribute), name))

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, noting that it begins and that it has returned."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                step = self._step(name, args)
                if step is not None:
                    self._reached(f"before {step}")
            result = function(*args, **kwargs)
            if step is not None:
                with self._lock:
                    self._reached(f"after {step}")
            return result

        return wrapper

    def _step(self, name: str, args: tuple[Any, ...]) -> str | None:
        """Name and number of a call; None for a system call that is not about the checkpoint."""
        if name in SYSTEM_CALLS:
            of = args[0]
            path = Path(f"/proc/self/fd/{of}").readlink() if type(of) is int else Path(of)
            if path == self._directory.parent:
                name += " parent"
            elif path == self._directory:
                name += " directory"
            elif path.is_relative_to(self._directory):
                name += f" {_kind_of(path)}"
            else:
                return None
        self._calls[name] += 1
        return f"{name} {self._calls[name]}"


def _kind_of(path: Path) -> str:
    """What a file in the directory is, by its name."""
    return {".distcp": "shard file", ".tmp": "temporary metadata"}.get(path.suffix, path.name)
