"""Procfile: a file that the kernel makes up when it is read."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

__all__ = ["KeptFile", "read_file"]

READ_BYTES = 64 << 10
# /proc/diskstats of a host with thousands of drives is the largest that is read here.
FILE_BYTES_MAX = 4 << 20


class KeptFile:
    """A file of the whole host that is read often and kept open, which halves what a reading costs.

    Read by position, so that a forked child may go on with it. A file of one process must not be
    kept: the child would read its parent's.
    """

    def __init__(self, path: str | Path) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> bytes:
        """Return what the file holds now, or nothing when it cannot be read."""
        text = b""
        with contextlib.suppress(OSError):
            # Most files of /proc come in parts of a page, however much is asked for.
            while len(text) < FILE_BYTES_MAX and (
                part := os.pread(self._descriptor, READ_BYTES, len(text))
            ):
                text += part
        return text


def read_file(path: str | Path) -> bytes:
    """Return what the file holds, or nothing when it cannot be read.

    A counter that a kernel, a container or a process that has ended does not show is no error here:
    it is unknown.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = b""
        while len(text) < FILE_BYTES_MAX and (part := os.read(descriptor, READ_BYTES)):
            text += part
    except OSError:
        return b""
    else:
        return text
    finally:
        os.close(descriptor)
