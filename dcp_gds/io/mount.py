"""Mount: the filesystem that a file is on, for messages that name it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "mount_of"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo: type such as "ext4", where it is mounted, and the device or source."""

    filesystem: str
    point: Path
    source: str


def mount_of(path: Path) -> Mount | None:
    """Return the mount that `path` is on, or None if it cannot be known.

    The kernel is asked which mount an open descriptor is on. Comparing paths with mount points
    fails where a mount hides another, and comparing device numbers fails on btrfs and overlay.
    """
    try:
        mount_id = _mount_id(path)
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    for line in lines.splitlines():
        # proc_pid_mountinfo(5): id parent device root point options [optional] - type source more
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if fields[0] == mount_id:
            filesystem, source = after.split(" ")[:2]
            return Mount(filesystem, Path(_unescape(fields[4])), _unescape(source))
    return None


def _mount_id(path: Path) -> str:
    """The id by which mountinfo lists the mount of `path`."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    finally:
        os.close(fd)
    facts = dict(line.partition(":")[::2] for line in text.splitlines())
    return facts["mnt_id"].strip()


def _unescape(text: str) -> str:
    r"""Turn the kernel's `\040` into a space, and likewise for tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
