"""Native facts of files: direct I/O's alignment and preallocation, on each kind of filesystem.

Method: real filesystems; the file's length and blocks afterwards, and the errno of each refusal.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dcp_gds.io.direct import dio_alignment, preallocate
from tests.filesystems import DIRECT_KINDS, KINDS, Mounts
from tests.io.native import opened

MIB = 1 << 20
GIB = 1 << 30


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_direct_io_alignment_is_known_where_direct_io_is_honoured(
    mounts: Mounts, kind: str
) -> None:
    with opened(mounts.directory(kind) / "file", os.O_RDWR | os.O_CREAT) as fd:
        found = dio_alignment(fd)
    if kind not in DIRECT_KINDS:
        assert found is None
        return
    assert found is not None
    memory, offset = found
    assert offset == (4096 if "4k" in kind else 512)
    assert memory in {1 << bits for bits in range(13)}


def test_what_is_no_file_has_no_alignment() -> None:
    reading, writing = os.pipe()
    assert dio_alignment(reading) is None
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        dio_alignment(reading)
    assert caught.value.errno == errno.EBADF


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_preallocation_gives_the_file_its_length_and_blocks(mounts: Mounts, kind: str) -> None:
    with opened(mounts.directory(kind) / "file", os.O_RDWR | os.O_CREAT) as fd:
        if preallocate(fd, length=3 * MIB + 1):
            status = os.fstat(fd)
            assert status.st_size == 3 * MIB + 1
            assert status.st_blocks * 512 >= status.st_size
        else:
            assert kind in {"ext3", "ramfs"}
            assert os.fstat(fd).st_size == 0


@pytest.mark.root
def test_a_full_disk_is_found_at_once(mounts: Mounts) -> None:
    with (
        opened(mounts.directory("ext4") / "file", os.O_RDWR | os.O_CREAT) as fd,
        pytest.raises(OSError, match="No space left") as caught,
    ):
        preallocate(fd, length=GIB)
    assert caught.value.errno == errno.ENOSPC


def test_a_refused_preallocation_keeps_its_errno(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "file", os.O_RDWR | os.O_CREAT) as fd,
        pytest.raises(OSError, match="Invalid argument"),
    ):
        preallocate(fd, length=0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        preallocate(fd, length=1)
