"""Unreferenced: files in a checkpoint's directory that its metadata do not name."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Unreferenced", "unreferenced_in"]

# More names are of no use to a reader; the rest is counted.
KEPT_MAX = 100


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """The first names in alphabetical order, and the number and the bytes of all."""

    names: tuple[str, ...]
    count: int
    bytes: int


def unreferenced_in(directory: Path, *, named: Collection[str]) -> Unreferenced:
    """Look for what saves that failed or were killed have left, and for anything else.

    Directories are not looked into. Nothing here says whose a file is: that of a save which is
    running at this moment looks the same.

    Parameters
    ----------
    named
        Files of the checkpoint, below `directory`.

    Raises
    ------
    OSError
        If the directory cannot be read.
    """
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name not in named and not entry.is_dir(follow_symlinks=False):
                try:
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # gone since
                    continue
    return Unreferenced(tuple(sorted(sizes)[:KEPT_MAX]), len(sizes), sum(sizes.values()))
