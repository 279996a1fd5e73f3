"""Selection takes GPUDirect Storage where a trial has worked, and says elsewhere why it does not.

Method: real filesystems; the trial's verdict is given.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.engine import EngineName
from dcp_gds.io.gdsprobe import GdsVerdict
from dcp_gds.io.selection import Selection, select_for_load, select_for_save
from tests.filesystems import Mounts

BLOCK = 4096
Select = Callable[..., Selection]


@pytest.fixture(params=["save", "load"])
def select(request: pytest.FixtureRequest) -> Select:
    return select_for_save if request.param == "save" else select_for_load


def path_for(select: Select, directory: Path) -> Path:
    if select is select_for_save:
        return directory
    (directory / "file").write_bytes(b"x" * 10_000)
    return directory / "file"


@pytest.mark.root
def test_gds_is_taken_where_it_works(mounts: Mounts, select: Select) -> None:
    path = path_for(select, mounts.directory("ext4"))
    tried: list[Path] = []

    def works(path: Path) -> GdsVerdict:
        tried.append(path)
        return GdsVerdict(True, "it was tried")

    for requested in ("auto", "gds"):
        found = select(path, requested=requested, try_gds=works)
        assert (found.engine, found.host_engine) == (EngineName.GDS, EngineName.DIRECT)
        assert (found.requested, found.reason) == (requested, "it was tried")
        assert (found.fallbacks, found.alignment) == ((), BLOCK)
    assert tried == [path, path]
    found = select(path, requested="direct", try_gds=works)
    assert found.engine is found.host_engine is EngineName.DIRECT
    assert select(path, requested="buffered", try_gds=works).host_engine is EngineName.BUFFERED
    assert len(tried) == 2


@pytest.mark.root
def test_where_gds_does_not_work_the_reason_is_told(mounts: Mounts, select: Select) -> None:
    path = path_for(select, mounts.directory("ext4"))

    def fails(path: Path) -> GdsVerdict:
        return GdsVerdict(False, f"{path} has no driver; load it")

    found = select(path, requested="auto", try_gds=fails)
    assert found.engine is EngineName.DIRECT
    assert found.reason.startswith(f"direct I/O is honoured on {path}")
    assert found.fallbacks == (f"{path} has no driver; load it",)
    with pytest.raises(UnsupportedError) as caught:
        select(path, requested="gds", try_gds=fails)
    assert str(caught.value) == f"engine='gds' cannot run: {path} has no driver; load it"


@pytest.mark.root
def test_without_direct_io_gds_is_not_tried(mounts: Mounts, select: Select) -> None:
    path = path_for(select, mounts.directory("tmpfs"))

    def never(path: Path) -> GdsVerdict:
        raise AssertionError

    found = select(path, requested="auto", try_gds=never)
    assert (found.engine, found.host_engine) == (EngineName.BUFFERED, EngineName.BUFFERED)
    with pytest.raises(UnsupportedError, match="engine='gds' cannot run: direct I/O is not"):
        select(path, requested="gds", try_gds=never)
