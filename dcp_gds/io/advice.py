"""Advice: what the kernel is told about the page cache."""

from __future__ import annotations

import contextlib
import os

__all__ = ["advise"]


def advise(fd: int, advice: int, *, offset: int = 0, length: int = 0) -> None:
    """Call posix_fadvise; what comes of it is not looked at.

    A refusal costs some clean pages of the page cache, which the kernel takes back by itself, and
    neither a save nor a load may fail for that.
    """
    with contextlib.suppress(OSError):
        os.posix_fadvise(fd, offset, length, advice)
