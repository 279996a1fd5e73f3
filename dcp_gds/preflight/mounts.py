"""Mounts: the line of mountinfo that a path is on, in this machine or a copy of another one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dcp_gds.preflight.host import Host, UnreadableError

__all__ = ["MountLine", "find_mount"]

SOURCE = "proc/self/mountinfo"
# Fields before and after the dash that every line has: proc_pid_mountinfo(5).
FIELDS_BEFORE = 6
FIELDS_AFTER = 3


@dataclass(frozen=True, slots=True)
class MountLine:
    """A mount; `device` is "major:minor", and major 0 means that no block device is named."""

    device: str
    point: str
    filesystem: str
    source: str
    options: tuple[str, ...]


def find_mount(host: Host, path: str, *, mount_id: str | None) -> MountLine:
    """Return the mount by the kernel's id, or without one that with the longest fitting point.

    Raises
    ------
    UnreadableError
        If mountinfo cannot be read, or no line of it fits.
    """
    best: MountLine | None = None
    for line in host.read(SOURCE).splitlines():
        number, mount = _parse(line)
        if mount is None:
            continue
        if mount_id is not None and number == mount_id:
            return mount
        fits = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # A later line hides an earlier one at the same point.
        if fits and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise UnreadableError(f"/{SOURCE}: no line for {path}")
    return best


def _parse(line: str) -> tuple[str, MountLine | None]:
    """The mount's id and the mount; None for a line that is none."""
    before, _, after = line.partition(" - ")
    fields, more = before.split(" "), after.split(" ")
    if len(fields) < FIELDS_BEFORE or len(more) < FIELDS_AFTER:
        return "", None
    options = (*fields[5].split(","), *more[2].split(","))
    return fields[0], MountLine(
        fields[2], _unescape(fields[4]), more[0], _unescape(more[1]), options
    )


def _unescape(text: str) -> str:
    r"""Turn the kernel's `\040` into a space, and likewise for tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
