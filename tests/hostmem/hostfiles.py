"""Hostfiles: a made-up host whose counters a test can move."""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["HostFiles"]

GIB = 1 << 30


class HostFiles:
    """Files of /proc below `root`; each value stays until it is set anew."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._counters: dict[str, int] = {
            "nr_dirty": 0,
            "nr_writeback": 0,
            "nr_dirty_background_threshold": 2 * GIB // mmap.PAGESIZE,
            "pgscan_kswapd": 100,
            "pgscan_direct": 100,
            "pswpin": 100,
            "pswpout": 100,
        }
        self._available = 16 * GIB
        (root / "proc").mkdir(parents=True)
        self.set()

    def set(self, *, available: int | None = None, **counters: int) -> None:
        """Set counters in pages, and available memory in bytes."""
        self._counters |= counters
        self._available = self._available if available is None else available
        lines = [f"{name} {value}\n" for name, value in self._counters.items()]
        (self.root / "proc/vmstat").write_text("".join(lines))
        (self.root / "proc/meminfo").write_text(
            f"MemTotal: {32 * GIB >> 10} kB\nMemAvailable: {self._available >> 10} kB\n"
        )

    def add(self, **pages: int) -> None:
        """Move counters on."""
        self.set(**{name: self._counters[name] + more for name, more in pages.items()})
