"""Host: a machine's /proc, /sys and /etc, which may also be a copy of another machine's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "UnreadableError"]

# The largest file of interest is mountinfo: thousands of mounts take about 150 bytes each.
READ_BYTES_MAX = 4 << 20
# A sysctl allocates as many bytes as are asked for, and answers ENOMEM to a request for 4 MiB.
PIECE_BYTES = 64 << 10


class UnreadableError(Exception):
    """A file cannot be used; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine whose files lie below `root`."""

    root: Path = Path("/")

    def read(self, name: str) -> str:
        """Return a file's text without white space around it.

        Raises
        ------
        UnreadableError
            If it is missing, not to be read by this user, no file, too long, or binary.
        """
        content = self.read_bytes(name)
        if b"\0" in content:
            raise UnreadableError(f"/{name}: not text")
        return os.fsdecode(content).strip()

    def read_bytes(self, name: str) -> bytes:
        """Return what a file holds; raises as `read`, but for binary files."""
        try:
            # A FIFO or a device in the place of a file must not block.
            fd = os.open(self._at(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                content = b""
                while len(content) <= READ_BYTES_MAX and (piece := os.read(fd, PIECE_BYTES)):
                    content += piece
            finally:
                os.close(fd)
        except OSError as error:
            raise UnreadableError(f"/{name}: {error.strerror}") from error
        except ValueError as error:
            # A name made of what another file says may have a null byte in it.
            raise UnreadableError(f"/{name!r}: {error}") from error
        if len(content) > READ_BYTES_MAX:
            raise UnreadableError(f"/{name}: longer than {READ_BYTES_MAX} bytes")
        return content

    def get(self, name: str) -> str | None:
        """Return a file's text, or None if it cannot be read."""
        try:
            return self.read(name)
        except UnreadableError:
            return None

    def number(self, name: str) -> int:
        """Return the number that a file consists of.

        Raises
        ------
        UnreadableError
            As `read`, and if it is no number.
        """
        text = self.read(name)
        try:
            return int(text)
        except ValueError:
            raise UnreadableError(f"/{name}: {text[:40]!r} is no number") from None

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if it cannot be read."""
        try:
            return sorted(os.listdir(self._at(directory)))  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def real(self, name: str) -> str:
        """Follow the links of a path below the root; its own text if it leaves the root."""
        root = os.path.realpath(self.root)
        resolved = os.path.realpath(self._at(name))
        inside = os.path.relpath(resolved, root)
        return name if inside.startswith("..") else inside

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        # Path.exists raises where a directory on the way may not be searched.
        return os.path.exists(self._at(name))  # noqa: PTH110

    def _at(self, name: str) -> Path:
        return self.root / name
