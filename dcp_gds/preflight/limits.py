"""Limits: findings on what the kernel and the process's limits mean for a save."""

from __future__ import annotations

from collections.abc import Iterator

from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import Host, UnreadableError

__all__ = ["check_memory", "check_nofile", "check_swap", "check_vm"]

# Each rank has a file for every shard it writes or reads, besides what torch holds open.
NOFILE_MIN = 4096
# Values for a node that trains: little dirty memory, and no swapping.
VM_ADVICE = (
    ("swappiness", 1, None),
    ("dirty_background_ratio", 5, "dirty_background_bytes"),
    ("dirty_ratio", 10, "dirty_bytes"),
    ("vfs_cache_pressure", 50, None),
)


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
    """The four vm.* settings, and the forms in bytes that replace two of them."""
    for name, advised, in_bytes in VM_ADVICE:
        source = f"/proc/sys/vm/{name}"
        number = int(host.get(f"proc/sys/vm/{in_bytes}") or 0) if in_bytes else 0
        if number:
            yield Finding(
                "vm", Status.OK, f"vm.{in_bytes}={number}, which replaces vm.{name}", source=source
            )
            continue
        value = host.number(f"proc/sys/vm/{name}")
        if value <= advised:
            yield Finding("vm", Status.OK, f"vm.{name}={value}", source=source)
        else:
            remedy = f"sysctl -w vm.{name}={advised}"
            observed = f"vm.{name}={value}"
            yield Finding("vm", Status.WARN, observed, str(advised), remedy, source)


def check_nofile(host: Host) -> Iterator[Finding]:
    """How many files a process may have open."""
    source = "proc/self/limits"
    for line in host.read(source).splitlines():
        if line.startswith("Max open files"):
            soft = line.removeprefix("Max open files").split()[0]
            few = soft != "unlimited" and int(soft) < NOFILE_MIN
            status = Status.WARN if few else Status.OK
            wanted, remedy = (str(NOFILE_MIN), f"ulimit -n {NOFILE_MIN}") if few else ("", "")
            yield Finding("nofile", status, f"{soft} open files", wanted, remedy, f"/{source}")
            return
    raise UnreadableError(f"/{source}: no line for open files")


def check_memory(host: Host) -> Iterator[Finding]:
    """The cgroup's limit on memory, which page cache counts against."""
    limit, source = _cgroup_limit(host)
    if limit is None:
        yield Finding("cgroup-memory", Status.OK, "no limit on memory", source=source)
        return
    observed = f"memory is limited to {limit / (1 << 30):.1f} GiB: page cache counts, too"
    remedy = (
        "write by direct I/O, or raise the limit: buffered writes fill it faster than they drain"
    )
    yield Finding("cgroup-memory", Status.WARN, observed, "no limit", remedy, source)


def _cgroup_limit(host: Host) -> tuple[int | None, str]:
    """The lowest limit on the way up from the process's own cgroup, of either version."""
    group, version = _own_group(host)
    base = "sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup"
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    limits: list[tuple[int, str]] = []
    parts = [part for part in group.split("/") if part]
    # Inside a container the path is the host's and is missing here: its root is the own group.
    for depth in range(len(parts), -1, -1):
        file = "/".join((base, *parts[:depth], name))
        text = host.get(file)
        # cgroup v1 says "no limit" as the largest multiple of a page.
        if text is not None and text.isdigit() and int(text) < 1 << 62:
            limits.append((int(text), f"/{file}"))
    return min(limits) if limits else (None, f"/{base}")


def _own_group(host: Host) -> tuple[str, int]:
    """The path of the memory cgroup, and its version."""
    unified = "/"
    for line in host.read("proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return path, 1
        if number == "0":
            unified = path
    return unified, 2
