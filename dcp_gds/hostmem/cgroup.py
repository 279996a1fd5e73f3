"""Cgroup: the memory cgroup of a process, of either version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.hostmem.procfile import read_file
from dcp_gds.hostmem.vmstat import parse_counters

__all__ = ["MemoryCgroup", "find_memory_cgroup"]

# cgroup v1 prints the largest multiple of a page below 2^63 where there is no limit.
NO_LIMIT_V1 = 1 << 62
# Of an unsigned long.
DIGITS_MAX = 20
# proc_pid_mountinfo(5): id parent major:minor root point options fields... - type source options.
MOUNT = re.compile(
    r"^\S+ \S+ \S+ (?P<root>\S+) (?P<point>\S+) .* - (?P<type>cgroup2?) \S+ (?P<options>\S+)$",
    re.MULTILINE,
)
# cgroups(7), /proc/PID/cgroup: number, controllers, path; version 2 has no controllers there.
MEMBERSHIP = re.compile(r"^\d+:(?P<controllers>[^:\n]*):(?P<path>/.*)$", re.MULTILINE)
# Names in memory.stat of each version, and ours. v1 counts a whole hierarchy only as total_*.
GAUGES = {
    1: {
        "total_dirty": "cgroup_dirty_bytes",
        "total_writeback": "cgroup_writeback_bytes",
        "total_swap": "cgroup_swap_bytes",
        "total_rss": "cgroup_anon_bytes",
        "total_cache": "cgroup_file_bytes",
    },
    2: {
        "file_dirty": "cgroup_dirty_bytes",
        "file_writeback": "cgroup_writeback_bytes",
        "anon": "cgroup_anon_bytes",
        "file": "cgroup_file_bytes",
    },
}
COUNTERS = {
    1: {"total_pgmajfault": "cgroup_pgmajfault"},
    2: {
        "pgscan": "cgroup_pgscan",
        "pgsteal": "cgroup_pgsteal",
        "pgmajfault": "cgroup_pgmajfault",
        "pswpin": "cgroup_pswpin",
        "pswpout": "cgroup_pswpout",
    },
}
# Files of one number each.
USAGE = {
    1: {
        "memory.usage_in_bytes": "cgroup_bytes",
        "memory.limit_in_bytes": "cgroup_limit_bytes",
    },
    2: {
        "memory.current": "cgroup_bytes",
        "memory.max": "cgroup_limit_bytes",
        "memory.swap.current": "cgroup_swap_bytes",
    },
}


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """A directory of the memory controller, and the version of its files."""

    directory: Path
    version: int

    def read(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return counters and gauges under our names. What the kernel does not tell is left out."""
        stat = parse_counters(read_file(f"{self.directory}/memory.stat"))
        counters = _renamed(stat, COUNTERS[self.version])
        gauges = _renamed(stat, GAUGES[self.version])
        for file, name in USAGE[self.version].items():
            word = read_file(f"{self.directory}/{file}").strip()
            # "max" is no number, and so no limit.
            if word.isdigit() and len(word) <= DIGITS_MAX and int(word) < NO_LIMIT_V1:
                gauges[name] = int(word)
        return counters, gauges


def find_memory_cgroup(pid: int | str, *, root: Path) -> MemoryCgroup | None:
    """Find the memory cgroup of a process; None where there is none to be seen.

    Parameters
    ----------
    pid
        A process, or "self".
    root
        Where /proc and /sys are.
    """
    memberships = _memberships(read_file(root / f"proc/{pid}/cgroup"))
    mounts = read_file(root / "proc/self/mountinfo").decode("utf-8", "replace")
    for match in MOUNT.finditer(mounts):
        version = 2 if match["type"] == "cgroup2" else 1
        if version == 1 and "memory" not in match["options"].split(","):
            continue
        path = memberships.get(version)
        if path is None:
            continue
        point = root / _unescaped(match["point"]).lstrip("/")
        # In a container without a cgroup namespace the path is the host's, and the mount shows
        # only what lies below `root`.
        for inner in (path, path.removeprefix(match["root"]), "/"):
            directory = point / inner.lstrip("/")
            if (directory / "memory.stat").exists():
                return MemoryCgroup(directory, version)
    return None


def _memberships(text: bytes) -> dict[int, str]:
    """The paths in /proc/PID/cgroup, by version."""
    found: dict[int, str] = {}
    for match in MEMBERSHIP.finditer(text.decode("utf-8", "replace")):
        if "memory" in match["controllers"].split(","):
            found[1] = match["path"]
        elif not match["controllers"]:
            found[2] = match["path"]
    return found


def _renamed(values: dict[str, int], names: dict[str, str]) -> dict[str, int]:
    """What is there of some values, under our names."""
    return {ours: values[theirs] for theirs, ours in names.items() if theirs in values}


def _unescaped(path: str) -> str:
    """A path of mountinfo, whose blanks are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
