"""Meminfo: the host's memory, as /proc/meminfo has it."""

from __future__ import annotations

from dcp_gds.hostmem.vmstat import parse_kib
from dcp_gds.preflight.host import Host, UnreadableError

__all__ = ["total_bytes"]


def total_bytes(host: Host) -> int:
    """Return the host's memory in bytes; raises UnreadableError if it is not told."""
    total = parse_kib(host.read_bytes("proc/meminfo")).get("MemTotal")
    if not total:
        raise UnreadableError("/proc/meminfo: no MemTotal")
    return total
