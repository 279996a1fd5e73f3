"""The filesystems of the tests leave nothing behind, and where they cannot be had, say why.

Method: mounts that end by an error or with a file still open; a machine without root, a program, or
the filesystem itself.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.filesystems import KINDS, Mounts, loop_mount, overlay_mount, tmpfs_mount

MIB = 1 << 20


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images and mount points are made in here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def devices_of(directory: Path) -> list[str]:
    """Loop devices with an image in a directory."""
    listed = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "BACK-FILE"],
        check=True,
        capture_output=True,
        text=True,
    )
    return [line for line in listed.stdout.splitlines() if str(directory) in line]


def assert_nothing_is_left(directory: Path) -> None:
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()
    assert devices_of(directory) == []
    assert list(directory.iterdir()) == []


@pytest.mark.root
def test_a_failure_inside_leaves_nothing(temporary: Path) -> None:
    @overlay_mount(loop_mount("ext4", length=16 * MIB))
    def fail() -> None:
        assert len(devices_of(temporary)) == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert_nothing_is_left(temporary)


@pytest.mark.root
def test_a_file_left_open_is_an_error_and_leaves_nothing(temporary: Path) -> None:
    with pytest.raises(OSError, match="busy"), loop_mount("ext4", length=16 * MIB) as point:
        left_open = (point / "file").open("wb")
    left_open.close()
    assert_nothing_is_left(temporary)


@pytest.mark.root
def test_directories_of_a_test_are_removed_and_all_is_unmounted(temporary: Path) -> None:
    mounts = Mounts()
    first, second = mounts.directory("tmpfs"), mounts.directory("tmpfs")
    (first / "file").touch()
    assert first.parent == second.parent
    mounts.clear()
    assert list(first.parent.iterdir()) == []
    mounts.close()
    assert_nothing_is_left(temporary)


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_written_to(temporary: Path, kind: str) -> None:
    mounts = Mounts()
    try:
        path = mounts.directory(kind) / "file"
        path.write_bytes(b"x")
        assert path.read_bytes() == b"x"
    finally:
        mounts.close()
    assert_nothing_is_left(temporary)


def test_without_root_the_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    for filesystem in (tmpfs_mount(), loop_mount("ext4", length=MIB)):
        with pytest.raises(pytest.skip.Exception, match="needs root"), filesystem:
            pass


@pytest.mark.root
def test_a_missing_program_or_filesystem_is_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"needs mkfs\.none"):
        loop_mount("none", length=MIB).__enter__()
    with pytest.raises(pytest.skip.Exception, match="mount -t none"):
        tmpfs_mount("none").__enter__()
    with pytest.raises(pytest.skip.Exception, match=r"mkfs\.ext4 -Z .* works: "):
        loop_mount("ext4", length=MIB, mkfs_options=("-Z",)).__enter__()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        with pytest.raises(pytest.skip.Exception, match="needs mount"):
            tmpfs_mount().__enter__()
    assert_nothing_is_left(temporary)
