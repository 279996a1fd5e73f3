"""Probe: a program that touches one path, and prints what it saw as JSON.

It runs as a process of its own, by its file's name and without the package, because each of its
system calls may hang: on a dead network mount even `stat` does. The caller ends it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import secrets
import stat
import sys
import time

__all__ = ["look", "main"]

# linux/stat.h: the request, and where struct statx has the two alignments.
STATX_DIOALIGN = 0x2000
STATX_LENGTH = 256
STATX_DIO_MEMORY = 152
AT_EMPTY_PATH = 0x1000
ALIGNMENT_MIN = 4096
# Enough to see a drive's order of magnitude, and written within a second by a slow one.
SPEED_BYTES = 32 << 20
SPEED_PIECE_BYTES = 4 << 20
# The same number on x86_64 and aarch64.
IO_URING_SETUP = 425
REFUSALS = (errno.EPERM, errno.ENOSYS, errno.EACCES)
NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


def main(path: str, *, write: bool) -> dict[str, object]:
    """Look at a path and, if `write`, write and read back blocks in a file that leaves no trace."""
    seen: dict[str, object] = {}
    try:
        seen.update(look(path))
    except OSError as error:
        seen["error"] = error.strerror
        seen["parent"] = _nearest_parent(path)
        return seen
    seen["io_uring"] = _io_uring()
    if seen["directory"] and write:
        seen.update(_write(path))
    return seen


def look(path: str) -> dict[str, object]:
    """Return what can be known of a path without writing; raises OSError if it is not there."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:  # noqa: PTH123
            facts = dict(line.partition(":")[::2] for line in file)
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    room = os.statvfs(path)
    return {
        "directory": stat.S_ISDIR(mode),
        "mount_id": facts["mnt_id"].strip(),
        "free": room.f_bavail * room.f_frsize,
        "inodes": room.f_files,
        "inodes_free": room.f_favail,
    }


def _io_uring() -> str:
    """Whether the kernel, or a container's filter of system calls, lets io_uring be set up."""
    ctypes.CDLL(None, use_errno=True).syscall(IO_URING_SETUP, 1, None)
    number = ctypes.get_errno()
    # Without parameters an allowed call fails, too: with EFAULT.
    return "refused: " + os.strerror(number) if number in REFUSALS else "allowed"


def _write(path: str) -> dict[str, object]:
    """Try direct I/O in a new file without a name."""
    try:
        fd = _open(path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return {"direct": False, "observed": "open refused O_DIRECT with EINVAL"}
        return {"write_error": error.strerror}
    try:
        promised = _dio_alignment(fd)
        if promised is None:
            return {"direct": False, "observed": "statx reports no alignment for direct I/O"}
        seen: dict[str, object] = {"alignment": promised}
        same = _write_and_read_back(fd, length=max(ALIGNMENT_MIN, *promised))
        seen["direct"] = same
        seen["observed"] = f"a block came back {'as' if same else 'other than'} written"
        return seen | (_speed(fd) if same else {})
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return {"direct": False, "observed": f"a transfer was refused: {error.strerror}"}
        return {"write_error": error.strerror}
    finally:
        os.close(fd)


def _open(path: str) -> int:
    """A new file opened with O_DIRECT that is gone when it is closed."""
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in NO_TMPFILE:
            raise
    name = os.path.join(path, f".dcp_gds-probe-{secrets.token_hex(8)}")  # noqa: PTH118
    # ramfs makes the file and refuses O_DIRECT afterwards: it has to go then, too.
    try:
        return os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    finally:
        if os.path.lexists(name):
            os.unlink(name)  # noqa: PTH108


def _dio_alignment(fd: int) -> tuple[int, int] | None:
    """Alignment in memory and file, or None where direct I/O is not honoured or not known."""
    buffer = ctypes.create_string_buffer(STATX_LENGTH)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None or statx(fd, b"", AT_EMPTY_PATH, STATX_DIOALIGN, buffer) != 0:
        return None
    word = int.from_bytes(buffer.raw[:4], sys.byteorder)
    memory, offset = (
        int.from_bytes(buffer.raw[at : at + 4], sys.byteorder)
        for at in (STATX_DIO_MEMORY, STATX_DIO_MEMORY + 4)
    )
    return (memory, offset) if word & STATX_DIOALIGN and offset else None


def _write_and_read_back(fd: int, *, length: int) -> bool:
    """Write an aligned block and compare."""
    with mmap.mmap(-1, length) as written, mmap.mmap(-1, length) as read:
        written[:] = os.urandom(length)
        os.pwrite(fd, written, 0)
        os.preadv(fd, [read], 0)
        return read[:] == written[:]


def _speed(fd: int) -> dict[str, object]:
    """Bytes a second of a short direct write; nothing where there is no room for it."""
    with mmap.mmap(-1, SPEED_PIECE_BYTES) as piece:
        piece[:] = os.urandom(SPEED_PIECE_BYTES)
        started = time.monotonic()
        try:
            for offset in range(0, SPEED_BYTES, SPEED_PIECE_BYTES):
                os.pwrite(fd, piece, offset)
            os.fdatasync(fd)
        except OSError:
            return {}
        return {"bytes_per_s": round(SPEED_BYTES / (time.monotonic() - started))}


def _nearest_parent(path: str) -> str:
    """The longest leading part of a path that exists."""
    parent = os.path.dirname(os.path.abspath(path))  # noqa: PTH120, PTH100
    while not os.path.isdir(parent) and parent != "/":  # noqa: PTH112
        parent = os.path.dirname(parent)  # noqa: PTH120
    return parent


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], write=sys.argv[2] == "write")))
