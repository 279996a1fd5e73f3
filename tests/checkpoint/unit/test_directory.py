"""A checkpoint's directory is made whatever is there already, or the error says what is in the way.

Method: real directories, some of which may not be read, and /proc, which does not sync directories.
What a power cut leaves is tested in tests/faults/calls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp_gds.checkpoint.directory import create_directory, sync_directory
from dcp_gds.errors import TransferError
from tests.checkpoint.restricted import restricted


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory that may be written and not read."""
    with restricted(0o333) as path:
        yield path


@pytest.mark.parametrize("sync", [True, False])
def test_directories_are_created(sync: bool, tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        assert create_directory(directory, sync=sync) == ""
        assert directory.is_dir()


def test_the_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in (".", "step", "../there/step", ".."):
        for _ in range(2):
            assert create_directory(Path(path), sync=True) == ""
    assert (tmp_path / "here" / "step").is_dir()
    assert (tmp_path / "there" / "step").is_dir()


def test_the_root_is_there() -> None:
    assert create_directory(Path("/"), sync=True) == ""


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_in_the_way_of_a_directory(sync: bool, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TransferError, match="cannot create the checkpoint's directory") as info:
            create_directory(path, sync=sync)
        assert info.value.errno == errno.EEXIST
        assert info.value.filename == str(tmp_path / "file")


def test_a_link_to_nothing_in_the_way_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(TransferError) as info:
        create_directory(tmp_path / "link", sync=True)
    assert info.value.errno == errno.EEXIST
    assert list(tmp_path.iterdir()) == [tmp_path / "link"]


def test_syncing_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="cannot open the directory") as info:
        sync_directory(tmp_path / "missing")
    assert info.value.errno == errno.ENOENT


def test_syncing_on_a_filesystem_that_does_not_sync_directories() -> None:
    with pytest.raises(TransferError, match=r"does not sync directories; .*sync=False") as info:
        sync_directory(Path("/proc"))
    assert info.value.errno == errno.EINVAL
    assert info.value.filename == "/proc"


def test_what_is_there_on_a_filesystem_that_does_not_sync_directories() -> None:
    reason = create_directory(Path("/proc/self"), sync=True)
    assert reason.startswith(f"/proc could not be synced ({os.strerror(errno.EINVAL)}): ")
    assert create_directory(Path("/proc/self"), sync=False) == ""


def test_what_is_there_where_the_parent_may_not_be_read(closed: Path) -> None:
    there = closed / "there"
    there.mkdir()
    reason = create_directory(there, sync=True)
    assert reason.startswith(f"{closed} could not be synced ({os.strerror(errno.EACCES)}): ")
    assert f"`sync -f {there}`" in reason
    assert create_directory(there / "a" / "b", sync=True) == reason
    # The parent of what is there now may be read.
    assert create_directory(there / "a" / "c", sync=True) == ""
    assert create_directory(there, sync=False) == ""


def test_nothing_is_made_where_the_parent_may_not_be_read(closed: Path) -> None:
    for _ in range(2):
        with pytest.raises(TransferError, match=r"has to be readable; .*sync=False") as info:
            create_directory(closed / "new" / "step", sync=True)
        assert info.value.errno == errno.EACCES
        assert info.value.filename == str(closed)
    assert not (closed / "new").exists()
    assert create_directory(closed / "new" / "step", sync=False) == ""
    assert (closed / "new" / "step").is_dir()
