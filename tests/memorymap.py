"""Memory map: what the kernel says about a mapping of this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mapping", "mapping_at"]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of smaps: bytes in memory, and flags such as "dc", not given to a forked child."""

    resident_bytes: int
    flags: frozenset[str]


def mapping_at(address: int) -> Mapping | None:
    """Return the mapping that holds `address`, or None if there is none."""
    text = Path("/proc/self/smaps").read_text()
    for entry in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)[1:]:
        start, end = (int(bound, 16) for bound in entry.split(" ", 1)[0].split("-"))
        if start <= address < end:
            resident = re.search(r"^Rss:\s+(\d+) kB", entry, re.MULTILINE)
            flags = re.search(r"^VmFlags: (.*)$", entry, re.MULTILINE)
            assert resident is not None
            assert flags is not None
            return Mapping(int(resident[1]) << 10, frozenset(flags[1].split()))
    return None
