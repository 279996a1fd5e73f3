"""Slice file: one item of a shard file as a file of its own, for readers that want a whole file."""

from __future__ import annotations

import io
import os
from pathlib import Path

__all__ = ["SliceFile"]


class SliceFile(io.RawIOBase):
    """Read-only view of `length` bytes of `path` from `offset` on."""

    def __init__(self, path: Path, *, offset: int, length: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._offset, self._length, self._position = offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._length - self._position)
        wanted = left if size < 0 else min(size, left)
        data = os.pread(self._file.fileno(), wanted, self._offset + self._position)
        self._position += len(data)
        return data

    def close(self) -> None:
        self._file.close()
        super().close()
