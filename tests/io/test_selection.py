"""Selection: direct I/O is taken only where it was seen to be honoured, and the reason says so.

Method: every kind of filesystem for real, as it is, read-only and full; transfers that a filesystem
would refuse or garble are put under the real code.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dcp_gds.benchmark.pagecache import cached_bytes
from dcp_gds.errors import StorageFullError, TransferError, UnsupportedError
from dcp_gds.io import mount, selection
from dcp_gds.io.engine import EngineName
from dcp_gds.io.selection import Selection, select_for_load, select_for_save, start_engine
from tests.filesystems import DIRECT_KINDS, KINDS, Mounts, read_only_mount, tmpfs_mount

CACHED_KINDS = KINDS[len(DIRECT_KINDS) :]
BLOCK = 4096

Select = Callable[..., Selection]


@pytest.fixture(params=["save", "load"])
def select(request: pytest.FixtureRequest) -> Select:
    return select_for_save if request.param == "save" else select_for_load


@pytest.fixture
def path(select: Select, tmp_path: Path) -> Path:
    """What the selection is asked about, on the temporary directory's filesystem."""
    return path_for(select, tmp_path)


def path_for(select: Select, directory: Path) -> Path:
    if select is select_for_save:
        return directory
    (directory / "file").write_bytes(b"x" * 10_000)
    return directory / "file"


def entries(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.root
@pytest.mark.parametrize("kind", DIRECT_KINDS)
def test_direct_io_is_taken_where_it_is_honoured(mounts: Mounts, select: Select, kind: str) -> None:
    directory = mounts.directory(kind)
    path = path_for(select, directory)
    before = entries(directory)
    for requested in ("auto", "direct"):
        found = select(path, requested=requested)
        assert (found.engine, found.requested) == (EngineName.DIRECT, requested)
        assert (found.fallbacks, found.alignment) == ((), BLOCK)
        assert found.reason.startswith(
            f"direct I/O is honoured on {path} ({kind.split('-', 1)[0]}, "
        )
        sector = 4096 if kind == "xfs-4k-sectors" else 512
        assert f"alignment 512 in memory and {sector} in the file" in found.reason
        seen = "4096 bytes came back as written" if path == directory else "4096 bytes were read"
        assert found.reason.endswith(seen)
    assert entries(directory) == before


@pytest.mark.root
@pytest.mark.parametrize("kind", CACHED_KINDS)
def test_elsewhere_the_fallback_says_what_was_observed(
    mounts: Mounts, select: Select, kind: str
) -> None:
    directory = mounts.directory(kind)
    path = path_for(select, directory)
    before = entries(directory)
    found = select(path, requested="auto")
    assert (found.engine, found.alignment) == (EngineName.BUFFERED, BLOCK)
    assert found.fallbacks == (found.reason,)
    assert f"not honoured on {path} ({kind.split('-', 1)[0]}, mounted on" in found.reason
    observed = "open refused O_DIRECT" if kind == "ramfs" else "STATX_DIOALIGN"
    assert observed in found.reason
    with pytest.raises(UnsupportedError) as caught:
        select(path, requested="direct")
    assert found.reason in str(caught.value)
    assert "use a local xfs or ext4 filesystem" in str(caught.value)
    assert entries(directory) == before


def test_buffered_is_taken_when_asked_for(select: Select, path: Path) -> None:
    found = select(path, requested="buffered")
    assert (found.engine, found.fallbacks, found.alignment) == (EngineName.BUFFERED, (), BLOCK)
    assert found.reason.startswith(f"engine='buffered' was asked for on {path} (")


def test_gds_is_refused(select: Select, path: Path) -> None:
    with pytest.raises(UnsupportedError, match="host memory only") as caught:
        select(path, requested="gds")
    assert str(path) in str(caught.value)


@pytest.mark.root
def test_probe_of_a_load_writes_nothing_and_caches_nothing(mounts: Mounts) -> None:
    directory = mounts.directory("ext4")
    path = path_for(select_for_load, directory)
    os.sync()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with read_only_mount(directory) as read_only:
        found = select_for_load(read_only / "file", requested="direct")
    assert found.engine is EngineName.DIRECT
    assert cached_bytes(path) == 0


@pytest.mark.parametrize("length", [0, 1])
def test_short_file_can_be_probed(tmp_path: Path, length: int) -> None:
    (tmp_path / "file").write_bytes(bytes(length))
    select_for_load(tmp_path / "file", requested="auto")


@pytest.mark.parametrize("requested", ["auto", "direct", "buffered"])
def test_path_that_is_not_there_keeps_its_errno(
    tmp_path: Path, select: Select, requested: str
) -> None:
    with pytest.raises(TransferError) as caught:
        select(tmp_path / "missing", requested=requested)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "missing")


def test_file_in_place_of_a_directory_and_link_in_place_of_a_file_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(TransferError) as caught:
        select_for_save(tmp_path / "file", requested="auto")
    assert caught.value.errno == errno.ENOTDIR
    with pytest.raises(TransferError) as caught:
        select_for_load(tmp_path / "link", requested="auto")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.root
def test_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with read_only_mount(tmp_path) as read_only, pytest.raises(TransferError) as caught:
        select_for_save(read_only, requested="auto")
    assert caught.value.errno == errno.EROFS


def without_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse O_TMPFILE, as some network filesystems do."""
    really_open = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return really_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.root
def test_without_nameless_files_the_probe_has_a_name_and_is_removed(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = mounts.directory("ext4")
    without_nameless_files(monkeypatch)
    assert select_for_save(directory, requested="direct").engine is EngineName.DIRECT
    assert entries(directory) == {}
    with read_only_mount(directory) as read_only, pytest.raises(TransferError) as caught:
        select_for_save(read_only, requested="direct")
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, str(read_only))


@pytest.mark.root
def test_full_disk_is_storage_full(mounts: Mounts) -> None:
    directory = mounts.directory("ext4")
    with (directory / "filler").open("wb") as filler:
        fill_disk(filler.fileno())
        with pytest.raises(StorageFullError) as caught:
            select_for_save(directory, requested="auto")
    assert caught.value.filename == str(directory)


@pytest.mark.root
def test_no_room_for_a_name_is_storage_full() -> None:
    with tmpfs_mount(options="size=1m,nr_inodes=1") as point, pytest.raises(StorageFullError):
        select_for_save(point, requested="auto")


def fill_disk(fd: int) -> None:
    """Take all blocks of a filesystem."""
    length = 0
    for step in (1 << 20, 1 << 10):
        try:
            while True:
                os.posix_fallocate(fd, length, step)
                length += step
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_refused_transfer_means_not_honoured(
    select: Select, path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    name = "pwrite" if select is select_for_save else "preadv"
    monkeypatch.setattr(selection, "dio_alignment", lambda _: (512, 512))
    monkeypatch.setattr(os, name, refuse)
    found = select(path, requested="auto")
    assert found.engine is EngineName.BUFFERED
    assert f"a transfer of 4096 bytes was refused: {os.strerror(number)}" in found.reason
    assert f"direct I/O is not honoured on {path} (" in found.reason


def test_broken_drive_is_no_reason_to_fall_back(
    select: Select, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(selection, "dio_alignment", lambda _: (512, 512))
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(TransferError) as caught:
        select(path, requested="auto")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))


def test_other_bytes_read_back_mean_not_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "dio_alignment", lambda _: (512, 512))
    monkeypatch.setattr(os, "preadv", lambda *_: BLOCK)
    found = select_for_save(tmp_path, requested="auto")
    assert found.engine is EngineName.BUFFERED
    assert "4096 bytes came back other than written" in found.reason


@pytest.mark.parametrize(
    ("hint", "demanded", "direct", "buffered"),
    [
        (0, (512, 512), 4096, 4096),
        (512, (512, 512), 4096, 4096),
        (12288, (512, 512), 8192, 8192),
        (65536, (512, 512), 65536, 65536),
        (1 << 20, (512, 512), 65536, 65536),
        (4096, (512, 16384), 16384, 4096),
        (4096, (8192, 512), 8192, 4096),
        (4096, (512, 1 << 17), 1 << 17, 4096),
    ],
)
def test_alignment_is_the_largest_demand_or_a_bounded_hint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hint: int,
    demanded: tuple[int, int],
    direct: int,
    buffered: int,
) -> None:
    monkeypatch.setattr(selection, "dio_alignment", lambda _: demanded)
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_blksize=hint))
    assert select_for_save(tmp_path, requested="auto").alignment == direct
    assert select_for_save(tmp_path, requested="buffered").alignment == buffered


def test_unknown_filesystem_is_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mount, "_mount_id", lambda _: "0")
    reason = select_for_save(tmp_path, requested="auto").reason
    assert f"on {tmp_path} (filesystem unknown): " in reason


@pytest.mark.parametrize("name", [EngineName.DIRECT, EngineName.BUFFERED])
def test_engine_that_was_selected_is_started(name: EngineName) -> None:
    engine = start_engine(name, queue_depth=3)
    try:
        assert (engine.name, engine.queue_depth, engine.in_flight) == (name, 3, 0)
    finally:
        engine.close()
