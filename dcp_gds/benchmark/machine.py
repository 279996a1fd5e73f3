"""Machine: bring memory, page cache and drive into the same state before every run."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from dcp_gds.benchmark.pagecache import cached_bytes

__all__ = ["WarmMemory", "cached_bytes_of_tree", "drop_caches", "settle"]

# Page cache and buffers of the largest contender beside the data themselves.
WARM_BYTES_BESIDE = 512 << 20
# The rest is for whoever else runs here.
WARM_SHARE_MAX = 0.5

DROP_CACHES = Path("/proc/sys/vm/drop_caches")

# Deleting files leaves discards and journal writes behind; drives take up to some seconds for them.
SETTLE_S_MIN = 1.5
SETTLE_S_MAX = 20.0
SETTLE_STEP_S = 0.25
# A log line of someone else is no load.
SETTLE_SECTORS_MAX = 512


class WarmMemory:
    """Memory that this machine has touched, held back for the page cache and buffers of a run.

    A virtual machine gives memory that lies free for two seconds back to its host, and taking it
    again costs seconds a GiB. That would be charged to whoever allocates: to buffered writers most
    of all. So the memory is held while the drive settles, and released right before a run.

    Parameters
    ----------
    length
        Bytes of data in a run.
    """

    def __init__(self, *, length: int) -> None:
        most = int(psutil.virtual_memory().available * WARM_SHARE_MAX)
        self._length = min(length + WARM_BYTES_BESIDE, most) // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapping: mmap.mmap | None = None
        self.hold()

    def hold(self) -> None:
        """Take the memory and touch each page."""
        if self._mapping is not None:
            return
        self._mapping = mmap.mmap(-1, self._length)
        self._mapping.madvise(mmap.MADV_HUGEPAGE)
        for offset in range(0, self._length, mmap.PAGESIZE):
            self._mapping[offset] = 1

    def release(self) -> None:
        """Give it to whoever asks next."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Release it for a block; the block must leave as much free again."""
        self.release()
        try:
            yield
        finally:
            self.hold()


def drop_caches(directory: Path) -> bool:
    """Remove the files below `directory` from the page cache, and as root all else from there.

    Returns whether the kernel dropped all else, inodes and directories too.
    """
    os.sync()
    for path in _files(directory):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        DROP_CACHES.write_text("3\n", encoding="ascii")
    except OSError:
        # EACCES without root, EROFS in a container.
        return False
    return True


def cached_bytes_of_tree(directory: Path) -> int:
    """Bytes of the files below `directory` that are in the page cache."""
    return sum(cached_bytes(path) for path in _files(directory))


def settle(directory: Path) -> bool:
    """Wait until the drive below `directory` has nothing to do; False if it never had."""
    os.sync()
    device = directory.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    if not counters.exists():
        # Not on a block device of its own (btrfs, overlay, tmpfs): nothing there to ask.
        time.sleep(SETTLE_S_MIN)
        return True
    deadline = time.monotonic() + SETTLE_S_MAX
    quiet_s = 0.0
    moved, _ = _traffic(counters)
    while quiet_s < SETTLE_S_MIN:
        if time.monotonic() > deadline:
            return False
        time.sleep(SETTLE_STEP_S)
        before = moved
        moved, in_flight = _traffic(counters)
        idle = not in_flight and moved - before <= SETTLE_SECTORS_MAX
        quiet_s = quiet_s + SETTLE_STEP_S if idle else 0.0
    return True


def _traffic(counters: Path) -> tuple[int, int]:
    """Sectors read, written and discarded so far, and requests in flight, of a block device."""
    # Kernel, Documentation/block/stat.rst: sectors are the fields 2, 6 and 13, in flight is 8,
    # counted from 0. Kernels before 4.18 count no discards.
    fields = [int(word) for word in counters.read_text(encoding="ascii").split()]
    return fields[2] + fields[6] + sum(fields[13:14]), fields[8]


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
