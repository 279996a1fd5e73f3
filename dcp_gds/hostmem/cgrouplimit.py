"""Cgroup limit: the tightest memory limit of this process's cgroup and of all above it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["CgroupLimit", "read_cgroup_limit"]

# Version 1 says "no limit" with the largest number of whole pages in 63 bits; no machine has half
# of it.
_NO_LIMIT_MIN = 1 << 62


@dataclass(frozen=True, slots=True)
class CgroupLimit:
    """A limit in bytes, the file that says so, and how much of it is free or holds file pages."""

    path: str
    limit: int
    free: int


@dataclass(frozen=True, slots=True)
class _Files:
    """How a version of cgroups names what is needed."""

    limit: str
    usage: str
    file_pages: str


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def read_cgroup_limit(root: Path) -> CgroupLimit | None:
    """Return the smallest limit from the process's own cgroup up to the one that is mounted.

    `root` holds `proc`; mount points are looked up below it. Version 1 and 2 may be there at the
    same time. Free is the least of all levels that have a limit, inactive file pages included,
    because the kernel takes those back without swapping.
    """
    levels = [
        limit
        for files, directory, top in _cgroups(root)
        for level in _upwards(directory, top)
        if (limit := _read_level(level, files)) is not None
    ]
    if not levels:
        return None
    tightest = min(levels, key=lambda level: level.limit)
    return CgroupLimit(tightest.path, tightest.limit, min(level.free for level in levels))


def _cgroups(root: Path) -> Iterator[tuple[_Files, Path, Path]]:
    """The process's memory cgroups: their files, their directory, and where they are mounted."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return  # a kernel without cgroups
    paths: dict[_Files, str] = {}
    for line in own:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths[_V2] = path
        elif "memory" in controllers.split(","):
            paths[_V1] = path
    for line in mounts:
        words, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        files = {"cgroup": _V1, "cgroup2": _V2}.get(kind)
        if files not in paths or (files is _V1 and "memory" not in options.split(",")):
            continue
        _, _, _, mount_root, point, *_ = words.split()
        top = root / point.lstrip("/")
        yield files, top / _below(paths[files], mount_root), top


def _below(path: str, mount_root: str) -> PurePosixPath:
    """A cgroup's path below its mount; in a container the mount may show another part of it."""
    try:
        return PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath(".")


def _upwards(directory: Path, top: Path) -> Iterator[Path]:
    """A directory and all above it, up to `top`."""
    yield directory
    while directory != top:
        directory = directory.parent
        yield directory


def _read_level(directory: Path, files: _Files) -> CgroupLimit | None:
    """The limit of one cgroup; None where there is none, as in the root, or it cannot be read."""
    path = directory / files.limit
    try:
        text = path.read_text().strip()
        usage = int((directory / files.usage).read_text())
        statistics = (directory / "memory.stat").read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return None
    if text == "max" or int(text) >= _NO_LIMIT_MIN:
        return None
    pages = dict(line.split(" ", 1) for line in statistics if " " in line)
    free = int(text) - usage + int(pages.get(files.file_pages, 0))
    return CgroupLimit(str(path), int(text), max(0, free))
