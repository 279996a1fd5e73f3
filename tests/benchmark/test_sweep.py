"""A sweep tries every setting, keeps what failed, and the fastest is taken each way.

Method: a tool whose speeds and failures are made up; it writes real files.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dcp_gds.benchmark import machine
from dcp_gds.benchmark.measure import Clocks
from dcp_gds.benchmark.setting import Moved, Setting
from dcp_gds.benchmark.sweep import Grid, Point, best, sweep
from dcp_gds.errors import StorageFullError, TransferError

GB = 10**9
GRID = Grid(GB, (1, 2), (4,))
SMALL, LARGE = Setting("a", 1, 4), Setting("a", 2, 4)
OTHER_SMALL, OTHER_LARGE = Setting("b", 1, 4), Setting("b", 2, 4)


@dataclass
class MadeUp:
    """Seconds to write and to read by setting, or what is raised."""

    seconds: dict[Setting, tuple[float | TransferError, float | TransferError]]
    name: str = "made up"
    calls: list[tuple[str, int, bool]] = field(default_factory=list)

    def write(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        path.write_bytes(b"")
        return self._move("write", self.seconds[setting][0], length=length, direct=direct)

    def read(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        assert path.exists()
        return self._move("read", self.seconds[setting][1], length=length, direct=direct)

    def _move(
        self, what: str, seconds: float | TransferError, *, length: int, direct: bool
    ) -> Moved:
        self.calls.append((what, length, direct))
        if isinstance(seconds, TransferError):
            raise seconds
        return Moved(length, Clocks(seconds, 0.0, None))


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DROP_CACHES", tmp_path_factory.mktemp("machine") / "caches")


def test_settings_that_fail_are_kept_with_their_error(tmp_path: Path) -> None:
    refused = TransferError(errno.EINVAL, "refused", "file")
    tool = MadeUp(
        {
            SMALL: (0.5, 0.25),
            LARGE: (0.25, 1.0),
            OTHER_SMALL: (refused, 0.1),
            OTHER_LARGE: (0.1, refused),
        }
    )
    points = sweep(tool, ("a", "b"), GRID, directory=tmp_path, direct=True)
    assert points == [
        Point("made up", SMALL, 2.0, 4.0),
        Point("made up", LARGE, 4.0, 1.0),
        Point("made up", OTHER_SMALL, error=str(refused)),
        Point("made up", OTHER_LARGE, error=str(refused)),
    ]
    assert [what for what, *_ in tool.calls] == [*["write", "read"] * 2, "write", "write", "read"]
    assert {call[1:] for call in tool.calls} == {(GB, True)}
    assert best(points, lambda point: point.write_gb_per_s) == LARGE
    assert best(points, lambda point: point.read_gb_per_s) == SMALL
    assert list(tmp_path.iterdir()) == []


def test_no_setting_that_worked(tmp_path: Path) -> None:
    refused = TransferError(errno.EIO, "refused", "file")
    tool = MadeUp({SMALL: (refused, 1.0), LARGE: (refused, 1.0)})
    points = sweep(tool, ("a",), GRID, directory=tmp_path, direct=False)
    assert best(points, lambda point: point.write_gb_per_s) is None


def test_no_room_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    full = StorageFullError(errno.ENOSPC, "full", "file")
    tool = MadeUp({SMALL: (full, 1.0)})
    with pytest.raises(StorageFullError):
        sweep(tool, ("a",), GRID, directory=tmp_path, direct=True)
    assert list(tmp_path.iterdir()) == []
