"""Arena: host memory for copies of a state, kept from save to save."""

from __future__ import annotations

import mmap

import torch

__all__ = ["Arena", "padded"]

# Copies begin at pages: then any alignment up to a page suits them, and two never share a page.
_PAGE = mmap.PAGESIZE


class Arena:
    """Hands out parts of one mapping, one behind the other. For one thread at a time.

    It is exactly as large as the most that was asked for by `reserve`, in whole pages.
    """

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._used = 0
        self._peak_bytes = 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes that it ever took."""
        return self._peak_bytes

    def reserve(self, length: int) -> None:
        """Make sure of `length` bytes. What was taken before has to be given up by then.

        The first copy brings the pages in, and is up to ten times slower than the next ones.
        Touching them here would take as long, before anything has been read.
        """
        self._used = 0
        if self._memory is not None and self._memory.numel() >= length:
            return
        # The old one goes first: both together would break the ceiling.
        self._memory = None
        if length:
            self._memory = _mapped(padded(length))
            self._peak_bytes = max(self._peak_bytes, padded(length))

    def take(self, length: int) -> torch.Tensor:
        """Return `length` bytes with unknown contents, as a tensor that begins at a page."""
        assert self._memory is not None
        start = self._used
        self._used += padded(length)
        assert self._used <= self._memory.numel(), "more was taken than reserved"
        return self._memory[start : start + length]

    def close(self) -> None:
        """Let go of the memory, which stays until the last tensor in it is gone."""
        self._memory = None
        self._used = 0


def padded(length: int) -> int:
    """Bytes that a part of `length` bytes takes: whole pages."""
    return -(-length // _PAGE) * _PAGE


def _mapped(length: int) -> torch.Tensor:
    """Map `length` bytes."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A forked child would otherwise share the pages copy-on-write, and the next write here would
    # move them away from under a transfer.
    memory.madvise(mmap.MADV_DONTFORK)
    return torch.frombuffer(memory, dtype=torch.uint8)
