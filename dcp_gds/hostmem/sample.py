"""Sample: all that is watched of the host's memory, at one moment."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.hostmem.cgroup import find_memory_cgroup
from dcp_gds.hostmem.procfile import read_file
from dcp_gds.hostmem.vmstat import (
    only,
    only_kib,
    parse_counters,
    parse_diskstats,
    parse_kib,
    parse_pressure,
)

__all__ = ["SLOW_INTERVAL_S", "Sample", "Sampler"]

COUNTERS = (
    "pgscan_kswapd",
    "pgscan_direct",
    "pgsteal_kswapd",
    "pgsteal_direct",
    "pswpin",
    "pswpout",
    "pgmajfault",
    "oom_kill",
)
# One line each up to some kernel, and several since: by zone, or for anonymous and file memory.
SUMMED = ("allocstall", "workingset_refault")
PAGES = {
    "nr_dirty": "dirty_bytes",
    "nr_writeback": "writeback_bytes",
    "nr_dirty_threshold": "dirty_threshold_bytes",
    "nr_dirty_background_threshold": "dirty_background_bytes",
}
PINS = ("nr_foll_pin_acquired", "nr_foll_pin_released")
VMSTAT = only((*COUNTERS, *PAGES, *PINS), prefixes=SUMMED)
PROCESS = {
    "VmRSS": "rss_bytes",
    "VmSwap": "process_swap_bytes",
    "VmLck": "locked_bytes",
    "VmPin": "process_pinned_bytes",
}
STATUS = only_kib(PROCESS)
MEMINFO = only_kib(("MemTotal", "MemAvailable", "SwapTotal", "SwapFree"))
SLOW_INTERVAL_S = 0.5
# Made of other drives or of memory: their bytes would be counted twice, or are none.
NOT_DRIVES = ("dm-", "md", "loop", "ram", "zram", "sr", "nbd", "drbd")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the kernel told at one moment. A name that is missing is unknown on this host.

    Parameters
    ----------
    time_s
        CLOCK_MONOTONIC, which all processes of a host share.
    counters
        Events, pages, bytes or microseconds since some beginning; only their changes mean anything.
    gauges
        Bytes now.
    """

    time_s: float
    counters: Mapping[str, int]
    gauges: Mapping[str, int]


class Sampler:
    """Reads the files of the kernel, 0.1 to 0.3 ms of CPU a time, and raises nothing.

    Parameters
    ----------
    pids
        Processes whose memory is added up; "self" is the one that reads. The first one's memory
        cgroup is watched.
    root
        Where /proc and /sys are.
    """

    def __init__(self, pids: Sequence[int | str] = ("self",), *, root: Path = Path("/")) -> None:
        self._pids = tuple(pids)
        self._proc = str(root / "proc")
        self._cgroup = find_memory_cgroup(self._pids[0] if self._pids else "self", root=root)
        self._drives = _drives(root)
        self._slow: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._slow_s = -SLOW_INTERVAL_S

    def sample(self, *, complete: bool = True) -> Sample:
        """Read everything once.

        Unless it has to be `complete`, what changes slowly or is no gauge is read twice a second at
        most, and is as it was at the last reading in between: that halves the cost at 10 Hz.
        """
        now = time.monotonic()
        counters, gauges = _of_vmstat(parse_counters(read_file(f"{self._proc}/vmstat"), VMSTAT))
        gauges |= _of_meminfo(parse_kib(read_file(f"{self._proc}/meminfo"), MEMINFO))
        if complete or now - self._slow_s >= SLOW_INTERVAL_S:
            self._slow, self._slow_s = self._read_slow(), now
        return Sample(now, counters | self._slow[0], gauges | self._slow[1])

    def _read_slow(self) -> tuple[dict[str, int], dict[str, int]]:
        """Counters and gauges of stalls, the cgroup, drives and processes."""
        counters: dict[str, int] = {}
        gauges: dict[str, int] = {}
        for kind in ("memory", "io"):
            stalls = parse_pressure(read_file(f"{self._proc}/pressure/{kind}"))
            counters |= {f"psi_{kind}_{who}_us": total for who, total in stalls.items()}
        if self._cgroup is not None:
            events, gauges = self._cgroup.read()
            counters |= events
        return counters | self._of_drives(), gauges | self._of_processes()

    def _of_drives(self) -> dict[str, int]:
        """Bytes that all drives have read and written."""
        drives = parse_diskstats(read_file(f"{self._proc}/diskstats"))
        known = [drives[name] for name in self._drives if name in drives]
        if not known:
            return {}
        return {
            "drive_read_bytes": sum(read for read, _ in known),
            "drive_written_bytes": sum(written for _, written in known),
        }

    def _of_processes(self) -> dict[str, int]:
        """Memory of the watched processes, those that have ended left out."""
        totals: dict[str, int] = {}
        for pid in self._pids:
            status = parse_kib(read_file(f"{self._proc}/{pid}/status"), STATUS)
            for theirs, ours in PROCESS.items():
                if theirs in status:
                    totals[ours] = totals.get(ours, 0) + status[theirs]
        return totals


def _of_vmstat(vmstat: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The watched counters, and the gauges in bytes."""
    counters = {name: vmstat[name] for name in COUNTERS if name in vmstat}
    for prefix in SUMMED:
        parts = [
            value
            for name, value in vmstat.items()
            if name == prefix or name.startswith(f"{prefix}_")
        ]
        if parts:
            counters[prefix] = sum(parts)
    gauges = {ours: vmstat[name] * mmap.PAGESIZE for name, ours in PAGES.items() if name in vmstat}
    acquired, released = (vmstat.get(name) for name in PINS)
    if acquired is not None and released is not None:
        # Counted on each CPU by itself: the sums can be a little off.
        gauges["pinned_bytes"] = max(acquired - released, 0) * mmap.PAGESIZE
    return counters, gauges


def _of_meminfo(meminfo: dict[str, int]) -> dict[str, int]:
    """Memory of the host, in bytes."""
    names = {"MemTotal": "total_bytes", "MemAvailable": "available_bytes"}
    gauges = {ours: meminfo[name] for name, ours in names.items() if name in meminfo}
    if "SwapTotal" in meminfo and "SwapFree" in meminfo:
        gauges["swap_used_bytes"] = meminfo["SwapTotal"] - meminfo["SwapFree"]
    return gauges


def _drives(root: Path) -> tuple[str, ...]:
    """Names of whole drives, without partitions and what is built on others."""
    try:
        names = sorted(path.name for path in (root / "sys/block").iterdir())
    except OSError:
        return ()
    return tuple(name for name in names if not name.startswith(NOT_DRIVES))
