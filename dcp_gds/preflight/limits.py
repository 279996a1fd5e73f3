"""Limits: findings on what the kernel and the process's limits mean for a save."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dcp_gds.errors import UnsupportedError
from dcp_gds.hostmem.cgrouplimit import read_cgroup_limit
from dcp_gds.hostmem.sysctl import directives
from dcp_gds.hostmem.vmstat import parse_kib
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import Host, UnreadableError

__all__ = [
    "check_io_uring",
    "check_memlock",
    "check_memory",
    "check_nofile",
    "check_overcommit",
    "check_swap",
    "check_thp",
    "check_vm",
]

GIB = 1 << 30
# Each rank has a file for every shard it writes or reads, besides what torch holds open.
NOFILE_MIN = 4096
LIMITS = "proc/self/limits"
STRICT = 2


def check_nofile(host: Host) -> Iterator[Finding]:
    """How many files a process may have open."""
    soft = _limit(host, "Max open files")
    few = soft is not None and soft < NOFILE_MIN
    wanted, remedy = (str(NOFILE_MIN), f"ulimit -n {NOFILE_MIN}") if few else ("", "")
    status = Status.WARN if few else Status.OK
    shown = "no limit on" if soft is None else str(soft)
    yield Finding("nofile", status, f"{shown} open files", wanted, remedy, f"/{LIMITS}")


def check_memlock(host: Host) -> Iterator[Finding]:
    """How much memory may be locked: told, not judged, since nothing here calls mlock."""
    locked = _limit(host, "Max locked memory")
    # CUDA's driver pins staging memory outside this limit.
    shown = "no limit on locked memory" if locked is None else f"{locked >> 10} KiB may be locked"
    yield Finding("memlock", Status.OK, f"{shown}; nothing here needs more", source=f"/{LIMITS}")


def check_swap(host: Host) -> Iterator[Finding]:
    """Whether the kernel can swap."""
    lines = host.read("proc/swaps").splitlines()[1:]
    if not lines:
        yield Finding("swap", Status.OK, "no swap", source="/proc/swaps")
        return
    observed = f"swap is on: {', '.join(line.split()[0] for line in lines if line.split())}"
    remedy = "swapoff -a, or keep vm.swappiness=1: swapped pages stall iterations"
    yield Finding("swap", Status.WARN, observed, "no swap", remedy, "/proc/swaps")


def check_vm(host: Host) -> Iterator[Finding]:
    """The settings of vm.* that `dcp-gds sysctl` shows, those in bytes included."""
    try:
        found = directives(host.root)
    except UnsupportedError as error:
        raise UnreadableError(str(error)) from error
    for each in found:
        source = f"/proc/sys/vm/{each.name}"
        observed = f"vm.{each.name}={each.now}"
        if each.now is None and each.good:
            continue  # this kernel has no such setting
        if each.now is None:
            yield Finding("vm", Status.SKIP, f"vm.{each.name} cannot be read", source=source)
        elif each.good:
            yield Finding("vm", Status.OK, observed, source=source)
        else:
            remedy = f"sysctl -w vm.{each.name}={each.advised}"
            yield Finding("vm", Status.WARN, observed, str(each.advised), remedy, source)


def check_overcommit(host: Host) -> Iterator[Finding]:
    """Whether memory is promised only as far as it is there."""
    mode = host.number("proc/sys/vm/overcommit_memory")
    source = "/proc/sys/vm/overcommit_memory"
    observed = f"vm.overcommit_memory={mode}"
    if mode != STRICT:
        yield Finding("overcommit", Status.OK, observed, source=source)
        return
    memory = parse_kib(host.read_bytes("proc/meminfo"))
    left = memory.get("CommitLimit", 0) - memory.get("Committed_AS", 0)
    observed += f": staging memory and CUDA's mappings must fit in {left / GIB:.1f} GiB"
    remedy = "sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio"
    yield Finding("overcommit", Status.WARN, observed, "0 or 1", remedy, source)


def check_thp(host: Host) -> Iterator[Finding]:
    """Transparent huge pages: told, not judged, since staging memory works with each setting."""
    place = "sys/kernel/mm/transparent_hugepage/enabled"
    chosen = re.search(r"\[(\w+)\]", host.read(place))
    if chosen is None:
        raise UnreadableError(f"/{place}: no setting is marked")
    yield Finding("huge-pages", Status.OK, f"transparent: {chosen[1]}", source=f"/{place}")


def check_io_uring(host: Host, facts: Facts) -> Iterator[Finding]:
    """Whether io_uring is allowed: told, not judged, since nothing here needs it."""
    answer = facts.seen.get("io_uring")
    if answer is None:
        disabled = host.number("proc/sys/kernel/io_uring_disabled")
        answer = ("allowed", "for root and a group only", "disabled")[disabled]
    observed = f"io_uring: {answer}; it is not needed"
    yield Finding("io-uring", Status.OK, observed, source="io_uring_setup(2)")


def check_memory(host: Host) -> Iterator[Finding]:
    """The cgroup's limit on memory, which page cache counts against."""
    found = read_cgroup_limit(host.root)
    if found is None:
        yield Finding("cgroup-memory", Status.OK, "no limit on memory", source="/proc/self/cgroup")
        return
    observed = f"memory is limited to {found.limit / GIB:.1f} GiB, {found.free / GIB:.1f} GiB of"
    observed += " it free: page cache counts, too"
    remedy = (
        "write by direct I/O, or raise the limit: buffered writes fill it faster than they drain"
    )
    yield Finding("cgroup-memory", Status.WARN, observed, "no limit", remedy, found.path)


def _limit(host: Host, name: str) -> int | None:
    """The process's soft limit of this name; None if there is none."""
    for line in host.read(LIMITS).splitlines():
        if line.startswith(name):
            soft = line.removeprefix(name).split()[0]
            return None if soft == "unlimited" else int(soft)
    raise UnreadableError(f"/{LIMITS}: no line {name}")
