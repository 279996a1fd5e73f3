"""Slow drive: a filesystem on a loop device whose writes the kernel holds to a rate.

Needs root, and the block I/O controller of cgroups version 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.filesystems import loop_mount, missing

__all__ = ["slow_mount"]

MIB = 1 << 20
THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


@contextmanager
def slow_mount(*, bytes_per_s: int, length: int = 768 * MIB) -> Iterator[Path]:
    """Mount an ext4 that takes `bytes_per_s` of writes a second."""
    if not os.access(THROTTLE, os.W_OK):
        missing("root and the blkio controller of cgroups version 1")
    options = ("-q", "-F", "-b", "4096", "-m", "0", "-E", "lazy_itable_init=0")
    with loop_mount("ext4", length=length, mkfs_options=options) as point:
        number = point.stat().st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        THROTTLE.write_text(f"{device} {bytes_per_s}")
        try:
            yield point
        finally:
            THROTTLE.write_text(f"{device} 0")
