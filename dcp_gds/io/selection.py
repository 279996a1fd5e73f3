"""Selection: which engine moves the bytes to or from a path, and the observation that decided."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.config import ENGINE_CHOICES
from dcp_gds.errors import UnsupportedError
from dcp_gds.io.buffered import BufferedEngine
from dcp_gds.io.direct import DirectEngine, dio_alignment
from dcp_gds.io.engine import Engine, EngineName
from dcp_gds.io.fileerror import file_error
from dcp_gds.io.gdsprobe import GdsVerdict
from dcp_gds.io.mount import mount_of
from dcp_gds.io.shardfile import ALIGNMENT_MIN, create_shard_file

__all__ = ["Selection", "TryGds", "select_for_load", "select_for_save", "start_engine"]

# st_blksize is a hint; network filesystems give megabytes, and each tensor pays up to one unit.
_BLOCK_HINT_MAX = 64 << 10
# A filesystem or kernel without O_TMPFILE, or one that refuses O_DIRECT: a named file tells which.
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_REMEDY = "use a local xfs or ext4 filesystem on Linux 6.1 or newer, or engine='buffered' or 'auto'"


@dataclass(frozen=True, slots=True)
class Selection:
    """The engine that was selected.

    Parameters
    ----------
    engine
        What moves the bytes.
    requested
        What was asked for: one of `ENGINE_CHOICES`.
    reason
        Why, as one sentence: path, filesystem and what was observed.
    fallbacks
        Why a better engine was not taken, one sentence each; empty if none was better, or wanted.
    alignment
        Placement alignment in bytes, a power of two.
    """

    engine: EngineName
    requested: str
    reason: str
    fallbacks: tuple[str, ...]
    alignment: int

    @property
    def host_engine(self) -> EngineName:
        """What moves host memory: seams, staging slots and tensors that are there."""
        return EngineName.DIRECT if self.engine is EngineName.GDS else self.engine


TryGds = Callable[[Path], GdsVerdict]
# Whether direct transfers went well, and what was seen.
_Outcome = tuple[bool, str]


@dataclass(frozen=True, slots=True)
class _Finding:
    """Whether direct I/O is honoured, and the observation that says so."""

    honoured: bool
    observed: str
    alignment: int


def select_for_save(directory: Path, *, requested: str, try_gds: TryGds | None = None) -> Selection:
    """Select the engine that writes into `directory`, by writing one block there.

    The block goes to a file without a name, or to one that is gone again when this returns.

    Parameters
    ----------
    directory
        Where the files will be.
    requested
        One of `ENGINE_CHOICES`.
    try_gds
        Says whether GPUDirect Storage works on a path: `probe_directory` or `probe_file`, kept by
        `GdsVerdicts`. It is called for "auto" and "gds" where direct I/O is honoured. None where
        no tensor is in a GPU's memory.

    Raises
    ------
    UnsupportedError
        If `requested` is "direct" and the filesystem does not honour direct I/O, or it is "gds" and
        that does not work; it says what was found.
    TransferError
        If no file can be written there at all; StorageFullError if for lack of room.
    """
    return _select(directory, _find_by_writing, requested=requested, try_gds=try_gds)


def select_for_load(path: Path, *, requested: str, try_gds: TryGds | None = None) -> Selection:
    """Select the engine that reads the file `path`, by reading its first block. Nothing is written.

    Parameters are those of `select_for_save`.

    Raises
    ------
    UnsupportedError
        As by `select_for_save`.
    TransferError
        If the file cannot be read at all.
    """
    return _select(path, _find_by_reading, requested=requested, try_gds=try_gds)


def start_engine(name: EngineName, *, queue_depth: int) -> Engine:
    """Start an engine for host memory; the caller closes it."""
    assert name is not EngineName.GDS, "a GdsEngine needs the window of a GPU"
    if name is EngineName.DIRECT:
        return DirectEngine(queue_depth=queue_depth)
    return BufferedEngine(queue_depth=queue_depth)


def _select(
    path: Path, find: Callable[[Path], _Finding], *, requested: str, try_gds: TryGds | None
) -> Selection:
    """Turn what was asked for and what was found into a selection."""
    assert requested in ENGINE_CHOICES
    if requested == "gds" and try_gds is None:
        raise UnsupportedError(
            f"engine='gds' for {path}: this version moves host memory only, and GPUDirect Storage"
            " needs an engine that is not part of it; use engine='auto'"
        )
    try:
        if requested == "buffered":
            alignment = _placement_alignment(path)
            reason = f"engine='buffered' was asked for on {_describe(path)}"
            return Selection(EngineName.BUFFERED, requested, reason, (), alignment)
        found = find(path)
    except OSError as error:
        raise file_error(error, path) from error
    verdict = "is" if found.honoured else "is not"
    reason = f"direct I/O {verdict} honoured on {_describe(path)}: {found.observed}"
    if found.honoured and try_gds is not None and requested != "direct":
        return _select_by_trial(try_gds(path), requested, reason, found.alignment)
    if found.honoured:
        return Selection(EngineName.DIRECT, requested, reason, (), found.alignment)
    if requested != "auto":
        raise UnsupportedError(f"engine={requested!r} cannot run: {reason}; {_REMEDY}")
    return Selection(EngineName.BUFFERED, requested, reason, (reason,), found.alignment)


def _select_by_trial(verdict: GdsVerdict, requested: str, reason: str, alignment: int) -> Selection:
    """Take GPUDirect Storage where it works; else direct I/O from host memory, if that may be."""
    if verdict.works:
        return Selection(EngineName.GDS, requested, verdict.reason, (), alignment)
    if requested == "gds":
        raise UnsupportedError(f"engine='gds' cannot run: {verdict.reason}")
    return Selection(EngineName.DIRECT, requested, reason, (verdict.reason,), alignment)


def _find_by_writing(directory: Path) -> _Finding:
    """Write a block to a new file and read it back."""
    with _probe_file(directory) as fd:
        return _find(directory, fd, _write_and_read_back)


def _find_by_reading(path: Path) -> _Finding:
    """Read a file's first block."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _find(path, None, _read)
    try:
        return _find(path, fd, _read)
    finally:
        os.close(fd)


@contextmanager
def _probe_file(directory: Path) -> Iterator[int | None]:
    """A new file opened with O_DIRECT, None if the filesystem refuses that; it leaves no trace."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    else:
        try:
            yield fd
        finally:
            os.close(fd)
        return
    path = directory / f".dcp_gds-probe-{secrets.token_hex(8)}"
    try:
        file = create_shard_file(path, direct=True)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        yield None
        return
    with file:
        path.unlink()
        yield file.fd


def _find(path: Path, fd: int | None, exercise: Callable[[int, int], _Outcome]) -> _Finding:
    """Ask the kernel about an open file, then try it."""
    alignment = _placement_alignment(path)
    if fd is None:
        return _Finding(False, "open refused O_DIRECT with EINVAL", alignment)
    promised = dio_alignment(fd)
    if promised is None:
        # A kernel may accept O_DIRECT here and go through the page cache all the same, unseen:
        # btrfs drops the pages at once, and mincore(2) finds nothing.
        observed = (
            "statx reports no alignment for direct I/O (STATX_DIOALIGN, which Linux has from 6.1"
            f" on; this is {os.uname().release})"
        )
        return _Finding(False, observed, alignment)
    memory, offset = promised
    alignment = max(alignment, memory, offset)
    try:
        went_well, seen = exercise(fd, alignment)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        went_well, seen = False, f"a transfer of {alignment} bytes was refused: {error.strerror}"
    observed = (
        f"statx reports alignment {memory} in memory and {offset} in the file,"
        f" {'and' if went_well else 'but'} {seen}"
    )
    return _Finding(went_well, observed, alignment)


def _write_and_read_back(fd: int, length: int) -> _Outcome:
    """Write an aligned block and compare."""
    with mmap.mmap(-1, length) as written, mmap.mmap(-1, length) as read:
        written[:] = os.urandom(length)
        os.pwrite(fd, written, 0)
        os.preadv(fd, [read], 0)
        same = read[:] == written[:]
    return same, f"{length} bytes came back {'as' if same else 'other than'} written"


def _read(fd: int, length: int) -> _Outcome:
    """Read an aligned block, which ends early in a shorter file."""
    with mmap.mmap(-1, length) as memory:
        return True, f"{os.preadv(fd, [memory], 0)} of {length} bytes were read"


def _placement_alignment(path: Path) -> int:
    """The filesystem's block size hint within 4 and 64 KiB, rounded down to a power of two."""
    hint = min(path.stat().st_blksize, _BLOCK_HINT_MAX)
    return max(ALIGNMENT_MIN, 1 << hint.bit_length() >> 1)


def _describe(path: Path) -> str:
    """Name a path and its filesystem."""
    mount = mount_of(path)
    if mount is None:
        return f"{path} (filesystem unknown)"
    return f"{path} ({mount.filesystem}, mounted on {mount.point} from {mount.source})"
