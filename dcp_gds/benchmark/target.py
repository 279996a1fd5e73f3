"""Target: the directory that is measured, and whether its figures would be of a drive."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.errors import ConfigError, StorageFullError, UnsupportedError
from dcp_gds.hostmem.units import format_bytes
from dcp_gds.io.mount import mount_of
from dcp_gds.io.selection import select_for_save
from dcp_gds.preflight.storage import MEMORY

__all__ = ["Target", "check_room", "look_at"]

ALLOW = "--allow-cached measures it all the same"


@dataclass(frozen=True, slots=True)
class Target:
    """A directory, its filesystem, whether direct I/O is honoured there, and what says so."""

    path: Path
    filesystem: str
    direct: bool
    reason: str


def look_at(path: Path, *, allow_cached: bool) -> Target:
    """Look at a directory by writing a block there.

    Raises
    ------
    ConfigError
        If it is no directory.
    UnsupportedError
        If its files are host memory, or direct I/O is not honoured, unless `allow_cached`.
    TransferError
        If nothing can be written there.
    """
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory; name one on the drive that is to be measured")
    mount = mount_of(path)
    filesystem = "unknown" if mount is None else mount.filesystem
    if filesystem in MEMORY:
        observed = f"{path} is on {filesystem}, which is host memory and no drive"
        if not allow_cached:
            raise UnsupportedError(f"{observed}; name a directory on a drive, or {ALLOW}")
        return Target(path, filesystem, direct=False, reason=observed)
    selection = select_for_save(path, requested="auto")
    direct = not selection.fallbacks
    if not direct and not allow_cached:
        raise UnsupportedError(
            f"{selection.reason}; so the figures would be of the page cache: use a local xfs or"
            f" ext4 filesystem, or {ALLOW}"
        )
    return Target(path, filesystem, direct=direct, reason=selection.reason)


def check_room(target: Target, *, length: int) -> None:
    """Make sure of `length` bytes.

    Raises
    ------
    StorageFullError
        With what is needed and what is free.
    """
    free = shutil.disk_usage(target.path).free
    if free < length:
        raise StorageFullError(
            errno.ENOSPC,
            f"the benchmark needs {format_bytes(length)}, and {format_bytes(free)} are free",
            os.fspath(target.path),
            needed=length,
            free=free,
        )
