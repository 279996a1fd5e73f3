"""Side reader: the few bytes of a shard file that say where everything else is."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType

from typing_extensions import Buffer

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent
from dcp_gds.io.advice import advise
from dcp_gds.io.fileerror import file_error, transfer_error
from dcp_gds.io.shardfile import open_shard_file

__all__ = ["SideReader"]


class SideReader:
    """Reads footers, heads and tails by plain pread, without readahead.

    They are a few hundred bytes each, at odd places: an engine would read whole blocks for each.

    Parameters
    ----------
    path
        A shard file; a symbolic link is refused, and what is no regular file.

    Raises
    ------
    TransferError
        If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moved = 0
        self._file = open_shard_file(path, direct=False)
        self._fd = self._file.fd
        try:
            self.length = os.fstat(self._fd).st_size
        except OSError as error:
            self._file.close()
            raise file_error(error, path) from error
        # Readahead would fill the page cache with payload that goes another way.
        advise(self._fd, os.POSIX_FADV_RANDOM)

    def read(self, extent: Extent) -> bytes:
        """Read an extent whole.

        Raises
        ------
        CorruptCheckpointError
            If the file ends before.
        TransferError
            If the kernel fails.
        """
        if extent.end > self.length:
            raise CorruptCheckpointError(
                f"bytes up to {extent.end} are needed, the file has {self.length}",
                self.path,
                offset=extent.offset,
            )
        parts = []
        offset = extent.offset
        while offset < extent.end:
            try:
                part = os.pread(self._fd, extent.end - offset, offset)
            except OSError as error:
                raise transfer_error(
                    error.errno or 0,
                    f"cannot read a shard file: {error.strerror}",
                    self.path,
                    offset=extent.offset,
                    length=extent.length,
                    done=offset - extent.offset,
                ) from error
            if not part:
                raise CorruptCheckpointError("the file was cut off", self.path, offset=offset)
            parts.append(part)
            offset += len(part)
        self.moved += extent.length
        return b"".join(parts)

    def view(self, extent: Extent) -> io.BufferedReader:
        """A seekable file that is one extent of this one, for readers that want a file."""
        return io.BufferedReader(_ExtentFile(self, extent), buffer_size=4096)

    def close(self) -> None:
        """Close the file; what it left in the page cache is given back."""
        advise(self._fd, os.POSIX_FADV_DONTNEED)
        self._file.close()

    def __enter__(self) -> SideReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        advise(self._fd, os.POSIX_FADV_DONTNEED)
        self._file.__exit__(kind, error, traceback)


class _ExtentFile(io.RawIOBase):
    """An extent of a shard file as a file of its own."""

    def __init__(self, reader: SideReader, extent: Extent) -> None:
        self._reader = reader
        self._extent = extent
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._extent.length}
        self._position = max(0, start[whence] + offset)
        return self._position

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._extent.length - self._position))
        data = self._reader.read(Extent(self._extent.offset + self._position, length))
        view[:length] = data
        self._position += length
        return length
