"""Memory: how much of the host's a block of code needed, by the kernel's high-water mark."""

from __future__ import annotations

from pathlib import Path

__all__ = ["PeakMemory"]

STATUS = Path("/proc/self/status")
# proc_pid_clear_refs(5): 5 sets the high-water mark to what is resident now.
RESET = Path("/proc/self/clear_refs")


class PeakMemory:
    """Notes by how many bytes the process's resident memory rose in a `with` block, at most.

    `grown_bytes` is None where the kernel's mark cannot be reset: it would tell of the past. Pages
    of the page cache are not the process's and do not count.
    """

    def __init__(self) -> None:
        self.grown_bytes: int | None = None
        self._before: int | None = None

    def __enter__(self) -> PeakMemory:
        try:
            RESET.write_text("5", encoding="ascii")
        except OSError:
            return self
        self._before = _status_bytes("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self.grown_bytes = max(0, _status_bytes("VmHWM") - self._before)


def _status_bytes(name: str) -> int:
    """A line of the process's status, such as `VmRSS:  1234 kB`."""
    for line in STATUS.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise AssertionError(f"{STATUS} has no {name}")
