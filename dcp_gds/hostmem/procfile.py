"""Procfile: a file that the kernel makes up when it is read."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["read_file"]

READ_BYTES = 64 << 10
# /proc/diskstats of a host with thousands of drives is the largest that is read here.
FILE_BYTES_MAX = 4 << 20


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
