"""Storage: findings on a path, its filesystem and the drives beneath."""

from __future__ import annotations

from collections.abc import Iterator

from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.mounts import find_mount

__all__ = ["check_access", "check_direct", "check_filesystem", "check_room"]

GIB = 1 << 30
NETWORK = frozenset({"nfs", "nfs4", "lustre", "cifs", "ceph", "wekafs", "beegfs", "gpfs", "9p"})
MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
REMEDY_LOCAL = "use a directory on a local ext4 or xfs filesystem on NVMe"
# What cuFile writes to by itself: NVIDIA's GDS documents name these two for local drives.
GDS_FILESYSTEMS = frozenset({"ext4", "xfs"})


def check_access(path: str, facts: Facts) -> Iterator[Finding]:
    """Whether the path is a directory in which this user can write, and answers at all."""
    seen = facts.seen
    if facts.failure:
        observed, remedy = f"{path} {facts.failure}", "see whether its mount is alive: `mount`"
    elif "error" in seen:
        observed = f"{path}: {seen['error']}"
        remedy = f"the nearest directory that exists is {seen['parent']}"
    elif not seen.get("directory", True):
        observed, remedy = f"{path} is no directory", "name the directory of the checkpoint"
    elif "write_error" in seen:
        observed = f"no file can be written in {path}: {seen['write_error']}"
        remedy = "free space, remount it read-write, or get the permission to write there"
    else:
        return
    yield Finding("access", Status.FAIL, observed, "a directory to write in", remedy, "statx(2)")


def check_direct(path: str, facts: Facts) -> Iterator[Finding]:
    """Whether direct I/O is honoured, as tried by the probe."""
    honoured = facts.seen.get("direct")
    if honoured is None:
        return
    observed = f"direct I/O {'is' if honoured else 'is not'} honoured on {path}"
    observed += f": {facts.seen['observed']}"
    if honoured:
        speed = facts.seen.get("bytes_per_s")
        memory, offset = facts.seen["alignment"]
        observed += f"; alignment {memory} in memory, {offset} in the file"
        observed += f"; {speed / 1e9:.2f} GB/s in a short write" if speed else ""
        yield Finding("direct-io", Status.OK, observed, source="write(2)")
    else:
        remedy = f"{REMEDY_LOCAL}, with Linux 6.1 or newer"
        yield Finding("direct-io", Status.FAIL, observed, "honoured", remedy, "write(2)")


def check_filesystem(host: Host, path: str, facts: Facts) -> Iterator[Finding]:
    """What the path's filesystem and its options mean for direct I/O and GDS."""
    mount = find_mount(host, path, mount_id=facts.seen.get("mount_id"))
    kind = mount.filesystem
    observed = f"{kind} on {mount.point} from {mount.source}"
    expected, remedy, status = "ext4 or xfs", REMEDY_LOCAL, Status.WARN
    if kind in MEMORY:
        observed, status = f"{observed}: a checkpoint there is host memory", Status.FAIL
    elif kind == "overlay":
        observed = f"{observed}, device {mount.device}: no block device that cuFile could find"
        remedy = "bind-mount a directory of the NVMe drive into the container (docker -v)"
    elif kind == "btrfs":
        observed = f"{observed}: with checksums, direct writes go through the page cache"
        remedy = f"{REMEDY_LOCAL}, or `chattr +C` on a new, empty directory"
    elif kind in NETWORK or kind.startswith("fuse"):
        observed = f"{observed}: direct I/O is for local drives, and GDS needs its vendor's support"
    elif kind == "ext4" and "data=journal" in mount.options:
        observed = f"{observed} with data=journal: every byte is written twice, and not directly"
        expected, remedy = "data=ordered", "mount it with data=ordered"
    elif kind in GDS_FILESYSTEMS:
        status, expected, remedy = Status.OK, "", ""
    else:
        observed = f"{observed}: not known to work with GDS"
    yield Finding("filesystem", status, observed, expected, remedy, "/proc/self/mountinfo")


def check_room(path: str, facts: Facts, need_bytes: int) -> Iterator[Finding]:
    """Whether the path has room for a checkpoint."""
    seen = facts.seen
    if "free" not in seen:
        return
    observed = f"{seen['free'] / GIB:.1f} GiB free on {path}"
    remedy = "free space; overwriting a checkpoint needs room for both"
    # A filesystem without a fixed number of inodes says that it has none.
    if seen["inodes"] and not seen["inodes_free"]:
        yield Finding("space", Status.FAIL, f"no inode free on {path}", "1", remedy, "statvfs(3)")
    if seen["free"] < need_bytes:
        expected = f"{need_bytes / GIB:.1f} GiB"
        observed += f", and {expected} are needed"
        yield Finding("space", Status.FAIL, observed, expected, remedy, "statvfs(3)")
    else:
        yield Finding("space", Status.OK, observed, source="statvfs(3)")
