"""Native threads of this process, as the kernel sees them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["engine_threads"]


def engine_threads() -> list[Path]:
    """Return the /proc directory of each thread that a native engine has started."""
    found: list[Path] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended since it was listed.
            continue
        if name == "dcp_gds_io":
            found.append(task)
    return found
