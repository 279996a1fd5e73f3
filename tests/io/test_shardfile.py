"""Shard file: created once, never through a link, and what the kernel refuses keeps its errno.

Method: real files and links, and filesystems that are read-only, full, or refuse O_DIRECT.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp_gds.benchmark.pagecache import cached_bytes
from dcp_gds.errors import StorageFullError, TransferError
from dcp_gds.io import shardfile
from dcp_gds.io.fileerror import file_error
from dcp_gds.io.shardfile import ShardFile, create_shard_file, open_shard_file
from tests.filesystems import DIRECT_KINDS, Mounts, read_only_mount, tmpfs_mount

MIB = 1 << 20

Opener = Callable[..., ShardFile]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_created_file_obeys_the_umask_and_closes(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with create_shard_file(tmp_path / "file", direct=False) as file:
            assert file.path == tmp_path / "file"
            assert file.path.stat().st_mode & 0o777 == 0o640
            assert (file.alignment, file.direct) == (1, False)
            assert not os.get_inheritable(file.fd)
            os.pwrite(file.fd, b"x", 0)
            assert os.pread(file.fd, 1, 0) == b"x"
            fd = file.fd
            assert f"fd={fd}" in repr(file)
    finally:
        os.umask(before)
    assert file.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    file.close()


def test_opened_file_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with open_shard_file(tmp_path / "file", direct=False) as file:
        assert (file.alignment, file.direct) == (1, False)
        assert not os.get_inheritable(file.fd)
        assert os.pread(file.fd, 2, 0) == b"x"
        with pytest.raises(TransferError) as caught:
            file.truncate(0)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.filename == str(tmp_path / "file")


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs-4k-sectors"])
def test_direct_file_goes_past_the_page_cache(mounts: Mounts, kind: str) -> None:
    path = mounts.directory(kind) / "file"
    memory = mmap.mmap(-1, 4096)
    for opened in (create_shard_file, open_shard_file):
        with opened(path, direct=True) as file:
            assert (file.alignment, file.direct) == (4096, True)
            if opened is create_shard_file:
                os.pwrite(file.fd, memory, 0)
            os.preadv(file.fd, [memory], 0)
            assert cached_bytes(path) == 0


def test_alignment_is_what_the_kernel_demands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for demanded, expected in (((512, 512), 4096), ((512, 16384), 16384), ((8192, 512), 8192)):
        monkeypatch.setattr(shardfile, "dio_alignment", lambda _, answer=demanded: answer)
        path = tmp_path / f"{demanded}"
        with create_shard_file(path, direct=True) as file:
            assert file.alignment == expected
    monkeypatch.setattr(shardfile, "dio_alignment", lambda _: None)
    with open_shard_file(path, direct=True) as file:
        assert file.alignment == 4096


def test_no_descriptor_is_lost_when_the_kernel_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "statx")

    monkeypatch.setattr(shardfile, "dio_alignment", refuse)
    before = open_descriptors()
    with pytest.raises(TransferError, match="statx") as caught:
        create_shard_file(tmp_path / "file", direct=True)
    assert caught.value.errno == errno.EIO
    assert open_descriptors() == before


def test_existing_file_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(TransferError) as caught:
        create_shard_file(tmp_path / "file", direct=False)
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("opener", "number"), [(create_shard_file, errno.EEXIST), (open_shard_file, errno.ELOOP)]
)
def test_symbolic_link_is_refused(tmp_path: Path, opener: Opener, number: int) -> None:
    (tmp_path / "elsewhere").write_bytes(b"old")
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TransferError) as caught:
        opener(tmp_path / "file", direct=False)
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "file"))
    assert (tmp_path / "elsewhere").read_bytes() == b"old"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_without_waiting(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "file")
    before = open_descriptors()
    with pytest.raises(TransferError, match="not a regular file") as caught:
        open_shard_file(tmp_path / "file", direct=False)
    assert caught.value.errno == errno.EINVAL
    assert open_descriptors() == before


@pytest.mark.parametrize("opener", [create_shard_file, open_shard_file])
def test_missing_directory_and_a_file_in_its_place_keep_their_errno(
    tmp_path: Path, opener: Opener
) -> None:
    (tmp_path / "plain").touch()
    for name, number in (("gone/file", errno.ENOENT), ("plain/file", errno.ENOTDIR)):
        with pytest.raises(TransferError) as caught:
            opener(tmp_path / name, direct=False)
        assert caught.value.errno == number


@pytest.mark.root
def test_read_only_mount_keeps_its_errno(tmp_path: Path) -> None:
    with read_only_mount(tmp_path) as read_only, pytest.raises(TransferError) as caught:
        create_shard_file(read_only / "file", direct=False)
    assert caught.value.errno == errno.EROFS


@pytest.mark.root
@pytest.mark.parametrize("opener", [create_shard_file, open_shard_file])
def test_refused_direct_io_leaves_no_file(mounts: Mounts, opener: Opener) -> None:
    directory = mounts.directory("ramfs")
    if opener is open_shard_file:
        (directory / "file").touch()
    before = list(directory.iterdir())
    with pytest.raises(TransferError) as caught:
        opener(directory / "file", direct=True)
    assert caught.value.errno == errno.EINVAL
    assert list(directory.iterdir()) == before


@pytest.mark.root
def test_no_room_for_another_file_is_storage_full() -> None:
    with tmpfs_mount(options="size=1m,nr_inodes=2") as point:
        (point / "last").touch()
        with pytest.raises(StorageFullError) as caught:
            create_shard_file(point / "file", direct=False)
    assert (caught.value.errno, caught.value.needed) == (errno.ENOSPC, None)


def test_sync_takes_the_file_out_of_the_page_cache(tmp_path: Path) -> None:
    with create_shard_file(tmp_path / "file", direct=False) as file:
        os.pwrite(file.fd, bytes(MIB), 0)
        assert cached_bytes(file.path) == MIB
        file.sync()
        assert cached_bytes(file.path) == 0


@pytest.mark.root
@pytest.mark.parametrize("kind", DIRECT_KINDS)
def test_cut_and_synced_direct_file_is_not_in_the_page_cache(mounts: Mounts, kind: str) -> None:
    path = mounts.directory(kind) / "file"
    memory = mmap.mmap(-1, 8192)
    memory[:] = b"x" * 8192
    with create_shard_file(path, direct=True) as file:
        os.pwrite(file.fd, memory, 0)
        # The kernel pads the last block with zeros, through the page cache.
        file.truncate(5000)
        file.sync()
        assert cached_bytes(path) == 0
    assert path.read_bytes() == b"x" * 5000


def test_failed_sync_and_close_are_errors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    pipe = ShardFile(tmp_path / "pipe", writer, direct=False, alignment=1)
    with pytest.raises(TransferError) as caught:
        pipe.sync()
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(tmp_path / "pipe"))
    os.close(writer)
    with pytest.raises(TransferError) as caught:
        pipe.close()
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(tmp_path / "pipe"))
    # Closed all the same.
    pipe.close()


def test_error_without_number_or_text_still_has_both(tmp_path: Path) -> None:
    error = file_error(OSError("text only"), tmp_path)
    assert (error.errno, error.strerror) == (errno.EIO, os.strerror(errno.EIO))
