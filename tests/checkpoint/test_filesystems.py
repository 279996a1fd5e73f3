"""Checkpoints come back from every kind of filesystem, and the report says truly how.

Method: real filesystems on loop devices, tmpfs and overlay; full and read-only ones; and the page
cache of ext4 and xfs after a large save.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.benchmark.pagecache import cached_bytes
from dcp_gds.errors import StorageFullError, TransferError, UnsupportedError
from tests.checkpoint.rawbytes import dense_tensor, raw
from tests.checkpoint.refusal import refused, snapshot
from tests.checkpoint.samples import LAYOUTS
from tests.checkpoint.storage import STOCK, dcp_load, dcp_save, load, save
from tests.filesystems import DIRECT_KINDS, KINDS, Mounts, loop_mount, read_only_mount

pytestmark = pytest.mark.root

MIB = 1 << 20
# More than any of the filesystems has, in the memory of one element.
TOO_MUCH = 512 * MIB
CACHED_MAX = 8 * MIB
FEW_INODES = ("-q", "-F", "-b", "4096", "-m", "0", "-N", "32")
# A filesystem that passes 256 MiB and its own structures.
LARGE_MOUNTS = {"ext4": ("-q", "-F", "-b", "4096", "-m", "0"), "xfs": ("-q",)}


def state() -> dict[str, Any]:
    """Every layout, a tensor of several transfers, and a value that is no tensor."""
    layouts = {layout: maker() for layout, maker in LAYOUTS.items()}
    return {**layouts, "large": dense_tensor((9 * MIB + 7,), torch.uint8), "epoch": 3}


def check_loads(path: Path, **options: Any) -> GDSReader:
    """Load all of `state` by ours and by stock; our reader, with its report."""
    expected = {name: raw(value) for name, value in state().items() if name != "epoch"}
    reader = GDSReader(path, **options)
    for each in (reader, STOCK.reader(path)):
        target: dict[str, Any] = {
            name: torch.zeros(value.shape, dtype=value.dtype)
            for name, value in state().items()
            if name != "epoch"
        }
        target["epoch"] = 0
        dcp_load(target, storage_reader=each, no_dist=True)
        assert target.pop("epoch") == 3
        assert {name: raw(tensor) for name, tensor in target.items()} == expected
    return reader


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_engine_and_why(kind: str, mounts: Mounts) -> None:
    path = mounts.directory(kind) / "step"
    with GDSWriter(path) as writer:
        dcp_save(state(), storage_writer=writer, no_dist=True)
        saved = writer.report
    with check_loads(path) as reader:
        loaded = reader.report
    assert saved is not None
    assert loaded is not None
    best = "direct" if kind in DIRECT_KINDS else "buffered"
    for report in (saved, loaded):
        assert report.engine == best
        assert report.bytes_by_engine[best] >= report.bytes
        assert report.engine_reason
        # A fallback names what was looked at: the path and what it showed.
        assert bool(report.fallbacks) == (best == "buffered")
        assert all(str(path) in fallback for fallback in report.fallbacks)


@pytest.mark.parametrize("kind", KINDS)
def test_buffered_on_demand(kind: str, mounts: Mounts) -> None:
    path = mounts.directory(kind) / "step"
    save(state(), path, engine="buffered")
    with check_loads(path, engine="buffered") as reader:
        assert reader.report is not None
        assert reader.report.engine == "buffered"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DIRECT_KINDS])
def test_direct_is_refused_where_it_is_not_honoured(kind: str, mounts: Mounts) -> None:
    path = mounts.directory(kind) / "step"
    with refused(UnsupportedError, path, "buffered"):
        save({"x": torch.ones(9)}, path, engine="direct")
    assert snapshot(path) == {}
    save({"x": torch.ones(9)}, path)
    with refused(UnsupportedError, path, "buffered"):
        load({"x": torch.ones(9)}, path, engine="direct")


@pytest.mark.parametrize("engine", ["auto", "buffered"])
@pytest.mark.parametrize("kind", ["ext4", "ext3", "xfs", "btrfs", "tmpfs", "overlay-on-ext4"])
def test_a_full_filesystem(kind: str, engine: str, mounts: Mounts) -> None:
    """Found before the first byte where the filesystem can preallocate; nothing is left behind."""
    path = mounts.directory(kind) / "step"
    save({"x": torch.ones(9)}, path)
    before = snapshot(path)
    large = torch.zeros(1, dtype=torch.uint8).expand(TOO_MUCH)
    with refused(StorageFullError, path) as refusal:
        save({"large": large}, path, engine=engine, overwrite=True)
    error = refusal.error
    assert isinstance(error, StorageFullError)
    assert error.errno == errno.ENOSPC
    assert error.needed is not None
    assert error.free is not None
    assert error.needed >= TOO_MUCH > error.free
    assert snapshot(path) == before
    target = torch.zeros(9)
    load({"x": target}, path)
    assert target.eq(1).all()


@contextmanager
def full_inode_table(point: Path, *, free: int) -> Iterator[None]:
    """Leave so many inodes free; the files that take the others are gone afterwards."""
    names = point / "names"
    names.mkdir()
    for name in range(os.statvfs(point).f_favail - free):
        (names / str(name)).touch()
    assert os.statvfs(point).f_favail == free
    yield
    shutil.rmtree(names)


@pytest.mark.parametrize("engine", ["auto", "buffered"])
@pytest.mark.parametrize(("name", "needed"), [("new", 3), ("old", 2)])
def test_a_full_inode_table(name: str, needed: int, engine: str) -> None:
    """A save makes a directory unless it is there, a shard file and the metadata's temporary one.

    One after the other is made to fail, though there is room for many bytes.
    """
    with loop_mount("ext4", length=16 * MIB, mkfs_options=FEW_INODES) as point:
        save({"x": torch.ones(9)}, point / "old")
        before = snapshot(point)
        for free in range(needed):
            with full_inode_table(point, free=free):
                with refused(StorageFullError, point / name, "no free inodes") as refusal:
                    save({"x": torch.zeros(9)}, point / name, engine=engine, overwrite=True)
                assert isinstance(refusal.error, StorageFullError)
                assert refusal.error.errno == errno.ENOSPC
                assert os.statvfs(point).f_favail == max(free - (name == "new"), 0)
            assert snapshot(point) == before
            target = torch.zeros(9)
            load({"x": target}, point / "old")
            assert target.eq(1).all()
            shutil.rmtree(point / "new", ignore_errors=True)
        with full_inode_table(point, free=needed):
            save({"x": torch.full((9,), 2.0)}, point / name, engine=engine, overwrite=True)
        target = torch.zeros(9)
        load({"x": target}, point / name)
        assert target.eq(2).all()


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_a_read_only_filesystem(kind: str, mounts: Mounts) -> None:
    path = mounts.directory(kind)
    save(state(), path)
    with read_only_mount(path) as shown:
        check_loads(shown).close()
        with refused(TransferError, shown / "new") as refusal:
            save({"x": torch.ones(9)}, shown / "new")
        assert isinstance(refusal.error, TransferError)
        assert refusal.error.errno == errno.EROFS
        with refused(TransferError, shown) as refusal:
            save({"x": torch.ones(9)}, shown, overwrite=True)
        assert isinstance(refusal.error, TransferError)
        assert refusal.error.errno == errno.EROFS


@pytest.mark.parametrize("filesystem", LARGE_MOUNTS)
def test_the_page_cache_stays_clean(filesystem: str) -> None:
    options = LARGE_MOUNTS[filesystem]
    with loop_mount(filesystem, length=400 * MIB, mkfs_options=options) as point:
        large = {f"w{n}": torch.full((4 * MIB,), float(n)) for n in range(16)}
        save(dict(large), point / "step", engine="direct")
        files = [file for file in (point / "step").iterdir() if file.is_file()]
        assert sum(file.stat().st_size for file in files) > 256 * MIB
        assert sum(cached_bytes(file) for file in files) < CACHED_MAX
        load(dict(large), point / "step", engine="direct")
        assert sum(cached_bytes(file) for file in files) < CACHED_MAX


def test_the_page_cache_is_measured(mounts: Mounts) -> None:
    """The measurement can fail: DCP's own writer leaves what it wrote in the page cache."""
    path = mounts.directory("ext4")
    save({"w": torch.ones(4 * MIB)}, path, STOCK)
    (file,) = path.glob("*.distcp")
    assert cached_bytes(file) > 12 * MIB
