"""Vmsettings: a made-up host's /proc/sys/vm, of any size."""

from __future__ import annotations

from pathlib import Path

__all__ = ["host_with"]

DEFAULTS = {
    "swappiness": 60,
    "dirty_ratio": 20,
    "dirty_background_ratio": 10,
    "dirty_bytes": 0,
    "dirty_background_bytes": 0,
    "vfs_cache_pressure": 100,
    "min_free_kbytes": 67584,
    "zone_reclaim_mode": 0,
    "watermark_scale_factor": 10,
}


def host_with(root: Path, *, ram_bytes: int, **settings: int | None) -> Path:
    """Lay out a host with the kernel's defaults but for `settings`; None leaves a file out."""
    directory = root / "proc/sys/vm"
    directory.mkdir(parents=True)
    for name, value in (DEFAULTS | settings).items():
        if value is not None:
            (directory / name).write_text(f"{value}\n")
    (root / "proc/meminfo").write_text(f"MemTotal: {ram_bytes >> 10} kB\n")
    return root
