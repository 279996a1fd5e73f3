"""Crash: what a power cut may leave of recorded calls, by the least that POSIX promises.

The bytes and the length of a file are durable once `fsync` or `fdatasync` of it has returned, and
a name once `fsync` of its directory has; `O_DIRECT` changes nothing, since drives have caches too.
Until then each change may have reached the drive or not, or by half, whatever became of the others.
Real filesystems promise more; a save that leans on that may lose a checkpoint on the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath

from tests.faults.calls.injector import Call

__all__ = ["NAMES", "SYNCS", "WRITES", "Crash", "Fate", "Image", "unpack"]

# What changes a directory, what changes a file, and what makes either durable.
NAMES = ("mkdir", "open", "rename", "unlink")
WRITES = ("fallocate", "ftruncate", "pwrite", "write")
SYNCS = ("fdatasync", "fsync")
# What changes nothing that outlives the machine. `sync_file_range` promises nothing: its manual
# page says so.
_WITHOUT_EFFECT = (
    *("close", "flock", "fstat", "fstatfs", "fstatvfs", "opendir", "posix_fadvise", "pread"),
    *("read", "stat", "statx", "sync_file_range"),
)

# Paths relative to the recorded directory, with contents; None for a directory.
Image = dict[str, bytes | None]


class Fate(Enum):
    """What became of a change that no sync had made durable.

    HALF of a write is its first half; of a rename, the new name beside the old one. Everything
    else has no half, and is kept.
    """

    DROPPED = "dropped"
    HALF = "half"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class _Write:
    """A change to a file: bytes, or a length that it has afterwards, or at least has."""

    call: int
    offset: int = 0
    data: bytes = b""
    length: int | None = None
    length_min: int = 0


@dataclass(slots=True)
class _Node:
    """A file or directory: what is durable, and what is not yet."""

    directory: bool = False
    content: bytes = b""
    pending: list[_Write] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A change to a directory: what a name stands for from then on; None for nothing."""

    call: int
    path: str
    node: _Node | None


class Crash:
    """Replays recorded calls up to a power cut.

    Parameters
    ----------
    root
        The directory below which the calls were recorded.
    before
        The files that were there, all of them durable, by their path below `root`.
    """

    def __init__(self, root: Path, before: Mapping[str, bytes], calls: Sequence[Call]) -> None:
        self.calls = calls
        self._root = root
        self._before = before

    def image(self, count: int, keep: Callable[[int], Fate]) -> Image:
        """What is on the drive if the power goes after the first `count` calls.

        Parameters
        ----------
        keep
            What becomes of the change by the call of an index, if it is not durable by then.
        """
        drive = _Drive(self._root, self._before)
        for index, call in enumerate(self.calls[:count]):
            if call.result >= 0:
                drive.carry_out(index, call)
        return drive.after(keep)


class _Drive:
    """A drive with what is durable on it, and what a running system sees."""

    def __init__(self, root: Path, before: Mapping[str, bytes]) -> None:
        self._root = root
        self._durable = {str(root): _Node(directory=True)}
        for relative, content in before.items():
            path = root / relative
            self._durable[str(path)] = _Node(content=content)
            for parent in path.relative_to(root).parents:
                self._durable.setdefault(str(root / parent), _Node(directory=True))
        self._seen = dict(self._durable)
        self._opened: dict[str, _Node] = {}
        self._positions: dict[str, int] = {}
        self._pending: list[_Entry] = []

    def carry_out(self, index: int, call: Call) -> None:
        """One call that succeeded."""
        match call.name:
            case "open":
                self._open(index, call)
            case "mkdir":
                self._enter(_Entry(index, call.path, _Node(directory=True)))
            case "unlink":
                self._enter(_Entry(index, call.path, None))
            case "rename":
                self._enter(_Entry(index, call.second_path, self._seen[call.path]))
                self._enter(_Entry(index, call.path, None))
            case "fsync" | "fdatasync":
                self._sync(call.path)
            case name if name in WRITES:
                self._write(index, call)
            case name:
                assert name in _WITHOUT_EFFECT, f"what a crash leaves of {name} is not known here"

    def after(self, keep: Callable[[int], Fate]) -> Image:
        """What is there when the power is back."""
        names = dict(self._durable)
        for entry in self._pending:
            fate = keep(entry.call)
            if fate is Fate.DROPPED or (fate is Fate.HALF and self._is_renamed_away(entry)):
                continue
            _change(names, entry)
        return {
            str(PurePath(path).relative_to(self._root)): (
                None if node.directory else _content(node, keep)
            )
            for path, node in names.items()
            # What lies in a directory that is not there cannot be found.
            if all(str(above) in names for above in _directories(path, self._root))
        }

    def _open(self, index: int, call: Call) -> None:
        assert not call.amount & os.O_TRUNC
        unnamed = call.amount & os.O_TMPFILE == os.O_TMPFILE
        if unnamed or (call.amount & os.O_CREAT and call.path not in self._seen):
            self._opened[call.path] = _Node()
            if not unnamed:
                self._enter(_Entry(index, call.path, self._opened[call.path]))
        else:
            self._opened[call.path] = self._seen[call.path]
        self._positions[call.path] = 0

    def _write(self, index: int, call: Call) -> None:
        node = self._opened[call.path]
        if call.name == "fallocate":
            node.pending.append(_Write(index, length_min=call.offset))
        elif call.name == "ftruncate":
            node.pending.append(_Write(index, length=call.offset))
        else:
            assert len(call.data) == call.amount, "recorded without what was written"
            offset = self._positions[call.path] if call.name == "write" else call.offset
            node.pending.append(_Write(index, offset, call.data[: call.result]))
            self._positions[call.path] += call.result if call.name == "write" else 0

    def _enter(self, entry: _Entry) -> None:
        self._pending.append(entry)
        _change(self._seen, entry)

    def _sync(self, path: str) -> None:
        node = self._opened[path]
        node.content = _content(node, lambda _: Fate.KEPT)
        node.pending.clear()
        if node.directory:
            synced = [entry for entry in self._pending if str(PurePath(entry.path).parent) == path]
            for entry in synced:
                _change(self._durable, entry)
                self._pending.remove(entry)

    def _is_renamed_away(self, entry: _Entry) -> bool:
        """Whether this is the old name's end in a rename."""
        return entry.node is None and any(
            other.call == entry.call and other.node is not None for other in self._pending
        )


def unpack(image: Image, directory: Path) -> None:
    """Write an image into an empty directory."""
    for relative, content in sorted(image.items()):
        path = directory / relative
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)


def _change(names: dict[str, _Node], entry: _Entry) -> None:
    """Let a name stand for something else, or for nothing."""
    if entry.node is None:
        names.pop(entry.path, None)
    else:
        names[entry.path] = entry.node


def _content(node: _Node, keep: Callable[[int], Fate]) -> bytes:
    """A file's bytes, with what is kept of its changes; holes are zeros."""
    content = bytearray(node.content)
    for write in node.pending:
        fate = keep(write.call)
        if fate is Fate.DROPPED:
            continue
        if write.length is not None:
            del content[write.length :]
        data = write.data[: len(write.data) // 2] if fate is Fate.HALF else write.data
        end = write.offset + len(data) if data else 0
        length = max(len(content), end, write.length or 0, write.length_min)
        content.extend(bytes(length - len(content)))
        content[write.offset : write.offset + len(data)] = data
    return bytes(content)


def _directories(path: str, root: Path) -> list[PurePath]:
    """The directories that lead to a path, the recorded one and those below it."""
    return [above for above in PurePath(path).parents if above.is_relative_to(root)]
