"""Allocating a shard file: a full disk is found at once, and has all its blocks back afterwards.

Method: small real filesystems without room, with a quota, or without preallocation.
"""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from dcp_gds.errors import StorageFullError, TransferError
from dcp_gds.io.shardfile import create_shard_file
from tests.filesystems import Mounts, loop_mount, missing, tmpfs_mount
from tests.io.transfers import file_size_limit

MIB = 1 << 20
DISK = 64 * MIB


def free_bytes(path: Path) -> int:
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_allocate_takes_the_blocks_and_truncate_gives_the_rest_back(
    mounts: Mounts, kind: str
) -> None:
    path = mounts.directory(kind) / "file"
    with create_shard_file(path, direct=False) as file:
        assert file.allocate(8 * MIB)
        assert path.stat().st_size == 8 * MIB
        assert allocated_bytes(path) == 8 * MIB
        file.truncate(MIB + 1)
        assert path.stat().st_size == MIB + 1
        file.sync()
    assert allocated_bytes(path) <= 2 * MIB


@pytest.mark.root
def test_without_preallocation_the_length_is_set(mounts: Mounts) -> None:
    path = mounts.directory("ext3") / "file"
    with create_shard_file(path, direct=True) as file:
        assert not file.allocate(8 * MIB)
    assert path.stat().st_size == 8 * MIB
    assert allocated_bytes(path) == 0


@pytest.mark.root
@pytest.mark.parametrize(
    ("filesystem", "options"),
    [("ext4", ("-q", "-F", "-m", "0")), ("ext4", ("-q", "-F", "-m", "0", "-b", "1024"))],
)
def test_full_disk_is_found_at_once_and_gets_its_blocks_back(
    filesystem: str, options: tuple[str, ...]
) -> None:
    with loop_mount(filesystem, length=DISK, mkfs_options=options) as point:
        before = free_bytes(point)
        with create_shard_file(point / "file", direct=True) as file:
            with pytest.raises(StorageFullError) as caught:
                file.allocate(2 * DISK)
            check_full(caught.value, point / "file", before=before)


@pytest.mark.root
def test_full_tmpfs_is_found_at_once_and_gets_its_blocks_back() -> None:
    with tmpfs_mount(options="size=4m") as point:
        before = free_bytes(point)
        with create_shard_file(point / "file", direct=False) as file:
            with pytest.raises(StorageFullError) as caught:
                file.allocate(2 * DISK)
            check_full(caught.value, point / "file", before=before)


def check_full(error: StorageFullError, path: Path, *, before: int) -> None:
    """While the file is still there, the disk has as much room as before, and the error says so."""
    assert (error.errno, error.filename, error.needed) == (errno.ENOSPC, str(path), 2 * DISK)
    assert (path.stat().st_size, allocated_bytes(path)) == (0, 0)
    assert error.free == free_bytes(path)
    # The file itself may cost its directory a block.
    assert before - 4096 <= error.free <= before
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert f"needed {2 * DISK} bytes, free {error.free}" in str(error)


@pytest.mark.root
def test_exceeded_quota_is_storage_full_with_an_unknown_rest() -> None:
    # A group quota of btrfs, because it binds root too.
    with loop_mount("btrfs", length=256 * MIB, mkfs_options=("-q",)) as point:
        for command in ("quota enable", "qgroup limit 16m"):
            done = subprocess.run(
                ["btrfs", *command.split(), str(point)], check=False, capture_output=True
            )
            if done.returncode:
                missing(f"`btrfs {command}`")
        with create_shard_file(point / "file", direct=False) as file:
            with pytest.raises(StorageFullError) as caught:
                file.allocate(DISK)
            assert (file.path.stat().st_size, allocated_bytes(file.path)) == (0, 0)
    assert caught.value.errno == errno.EDQUOT
    assert (caught.value.needed, caught.value.free) == (DISK, None)


def test_too_long_a_file_is_no_full_disk(tmp_path: Path) -> None:
    with create_shard_file(tmp_path / "file", direct=False) as file, file_size_limit(MIB):
        with pytest.raises(TransferError) as caught:
            file.allocate(2 * MIB)
        assert type(caught.value) is TransferError
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(TransferError, match="File too large"):
            file.truncate(2 * MIB)
