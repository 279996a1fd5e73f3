"""Recorded: files of several kernels, and trees of them that look like /proc and /sys."""

from __future__ import annotations

from pathlib import Path

__all__ = ["KERNELS", "proc_tree", "recording"]

RECORDINGS = Path(__file__).parent / "recordings"
KERNELS = ("4.18", "5.4", "6.2", "6.18", "6.19")


def recording(kernel: str, name: str) -> bytes:
    """A file that a kernel printed; nothing where none was recorded."""
    path = RECORDINGS / kernel / name
    return path.read_bytes() if path.exists() else b""


def proc_tree(root: Path, kernel: str, *, drives: tuple[str, ...] = ()) -> Path:
    """Lay the files of a kernel out below `root` as they are on a host."""
    (root / "proc/pressure").mkdir(parents=True)
    for name in ("vmstat", "meminfo", "diskstats"):
        if text := recording(kernel, name):
            (root / "proc" / name).write_bytes(text)
    for kind in ("memory", "io"):
        if text := recording(kernel, f"pressure_{kind}"):
            (root / "proc/pressure" / kind).write_bytes(text)
    for name in drives:
        (root / "sys/block" / name).mkdir(parents=True)
    return root
