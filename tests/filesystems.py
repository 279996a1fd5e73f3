"""Filesystems: real ones for tests, mounted on loop devices or from memory, and gone afterwards.

Needs root. A test that cannot have its filesystem is skipped and names what is missing; in CI, a
skip fails the run: see `tests/conftest.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = [
    "DIRECT_KINDS",
    "KINDS",
    "Mounts",
    "loop_mount",
    "missing",
    "mount",
    "mounts",
    "overlay_mount",
    "read_only_mount",
    "session_mounts",
    "tmpfs_mount",
]

MIB = 1 << 20

Opener = Callable[[], AbstractContextManager[Path]]


class Mounts:
    """One filesystem of each kind, mounted when a test first asks for it, shared by a session."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._points: dict[str, Path] = {}
        self._directories: list[Path] = []

    def directory(self, kind: str) -> Path:
        """Return a fresh directory on a filesystem of a kind in `KINDS`."""
        if kind not in self._points:
            self._points[kind] = self._stack.enter_context(_OPENERS[kind]())
        self._directories.append(Path(tempfile.mkdtemp(dir=self._points[kind])))
        return self._directories[-1]

    def clear(self) -> None:
        """Remove all directories."""
        while self._directories:
            shutil.rmtree(self._directories.pop())

    def close(self) -> None:
        """Unmount all."""
        self._stack.close()


@pytest.fixture(scope="session")
def session_mounts() -> Iterator[Mounts]:
    """The session's filesystems."""
    shared = Mounts()
    try:
        yield shared
    finally:
        shared.close()


@pytest.fixture
def mounts(session_mounts: Mounts) -> Iterator[Mounts]:
    """The session's filesystems; the directories made by a test are removed after it."""
    yield session_mounts
    session_mounts.clear()


@contextmanager
def loop_mount(
    filesystem: str,
    *,
    length: int,
    sector_size: int = 512,
    mkfs_options: tuple[str, ...] = (),
    mount_options: tuple[str, ...] = (),
) -> Iterator[Path]:
    """Mount a new filesystem of `length` bytes in an image file, through a loop device.

    The image lies in the temporary directory, and the loop device reads and writes it by direct
    I/O, so that no byte is in the page cache on behalf of the device below.
    """
    _require_root()
    for program in (f"mkfs.{filesystem}", "losetup"):
        _require_program(program)
    with tempfile.TemporaryDirectory(prefix=f"loop-{filesystem}-") as directory:
        image = Path(directory, "image")
        with image.open("wb") as file:
            file.truncate(length)
        with (
            _loop_device(image, sector_size=sector_size) as device,
            ExitStack() as stack,
        ):
            _run(f"mkfs.{filesystem}", *mkfs_options, device)
            point = Path(directory, "mount")
            stack.enter_context(mount(device, point, "-t", filesystem, *mount_options))
            yield point


@contextmanager
def tmpfs_mount(filesystem: str = "tmpfs", *, options: str = "size=64m") -> Iterator[Path]:
    """Mount a filesystem that lives in memory: tmpfs, or ramfs, which refuses O_DIRECT."""
    with (
        tempfile.TemporaryDirectory(prefix=f"{filesystem}-") as directory,
        mount(filesystem, Path(directory, "mount"), "-t", filesystem, "-o", options) as point,
    ):
        yield point


@contextmanager
def overlay_mount(base: AbstractContextManager[Path]) -> Iterator[Path]:
    """Mount an overlay whose layers are on another filesystem."""
    with base as below, tempfile.TemporaryDirectory(prefix="overlay-") as directory:
        for layer in ("lower", "upper", "work"):
            (below / layer).mkdir()
        options = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
        point = Path(directory, "mount")
        with mount("overlay", point, "-t", "overlay", "-o", options):
            yield point


@contextmanager
def read_only_mount(path: Path) -> Iterator[Path]:
    """Show a directory at a second place where nothing can be written, not even by root."""
    with (
        tempfile.TemporaryDirectory(prefix="read-only-") as directory,
        mount(str(path), Path(directory, "mount"), "-o", "bind,ro") as point,
    ):
        yield point


@contextmanager
def mount(source: str, point: Path, *options: str) -> Iterator[Path]:
    """Mount at a path that is made for it, and unmount."""
    _require_root()
    _require_program("mount")
    point.mkdir()
    _run("mount", *options, source, str(point))
    try:
        yield point
    finally:
        done = subprocess.run(["umount", str(point)], check=False, capture_output=True, text=True)
        if done.returncode:
            # A test left a file open: say so, but leave neither the mount nor the image behind.
            subprocess.run(["umount", "--lazy", str(point)], check=True)
            raise OSError(done.stderr)


def missing(capability: str) -> NoReturn:
    """Skip the test because this machine lacks something."""
    pytest.skip(f"needs {capability}")


@contextmanager
def _loop_device(image: Path, *, sector_size: int) -> Iterator[str]:
    """Attach an image to a free loop device."""
    device = _run(
        "losetup",
        "--find",
        "--show",
        "--direct-io=on",
        f"--sector-size={sector_size}",
        str(image),
    )
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def _run(*command: str) -> str:
    """Run a command and return what it says; the test is skipped if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        missing(f"a machine where `{' '.join(command)}` works: {done.stderr.strip()}")
    return done.stdout.strip()


def _require_root() -> None:
    """Skip the test for other users."""
    if os.geteuid() != 0:
        missing("root, to mount filesystems")


def _require_program(name: str) -> None:
    """Skip the test if a program is not installed."""
    if shutil.which(name) is None:
        missing(name)


_ext4 = partial(
    loop_mount, "ext4", length=160 * MIB, mkfs_options=("-q", "-F", "-b", "4096", "-m", "0")
)
# mkfs.xfs refuses less than 300 MiB.
_xfs = partial(loop_mount, "xfs", length=320 * MIB, mkfs_options=("-q",))

_OPENERS: dict[str, Opener] = {
    "ext4": _ext4,
    # Without extents: no preallocation.
    "ext3": partial(loop_mount, "ext3", length=160 * MIB, mkfs_options=("-q", "-F")),
    "xfs": _xfs,
    "xfs-4k-sectors": partial(_xfs, sector_size=4096),
    "overlay-on-ext4": lambda: overlay_mount(_ext4()),
    "btrfs": partial(loop_mount, "btrfs", length=256 * MIB, mkfs_options=("-q",)),
    "tmpfs": tmpfs_mount,
    "overlay-on-tmpfs": lambda: overlay_mount(tmpfs_mount()),
    "ramfs": partial(tmpfs_mount, "ramfs", options="mode=700"),
}

KINDS = tuple(_OPENERS)
# Where direct I/O is honoured.
DIRECT_KINDS = KINDS[: KINDS.index("btrfs")]
