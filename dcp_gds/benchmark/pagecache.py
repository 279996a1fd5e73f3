"""Page cache: how much of a file the kernel holds there."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

__all__ = ["cached_bytes"]

_libc = ctypes.CDLL(None, use_errno=True)


def cached_bytes(path: Path) -> int:
    """Return the bytes of a file's pages in the page cache, by mincore(2) on an untouched mapping.

    The kernel answers truly only to a user who may write the file.
    """
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        if not length:
            return 0
        # Private, so that a writable buffer, whose address ctypes can tell, needs no writable file.
        with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY) as mapping:
            pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
            start = ctypes.c_char.from_buffer(mapping)
            failed = _libc.mincore(ctypes.byref(start), ctypes.c_size_t(length), pages)
            del start
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
