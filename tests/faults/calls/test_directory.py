"""A directory that a save has made or found is there after a power cut, with what leads to it.

Method: the calls that make it are recorded and replayed; in a second run a sync fails, which ends
the first save as a kill would, and the next save goes on from what is there.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from dcp_gds.checkpoint.directory import create_directory
from dcp_gds.errors import TransferError
from tests.faults.calls.crash import SYNCS, Crash, Fate
from tests.faults.calls.injector import Call, Fault, observing
from tests.ranks import Ranks

STEP = "a/b/step"
# In this order: what is made is durable before anything is made in it.
MADE = [
    *(("mkdir", "a"), ("fsync", "")),
    *(("mkdir", "a/b"), ("fsync", "a")),
    *(("mkdir", "a/b/step"), ("fsync", "a/b")),
]


def created(root: Path, relative: str, faults: list[Fault]) -> list[Call]:
    """The calls that make a directory; with faults, those of a failed attempt and of a second."""
    with observing(root, faults) as observed:
        if faults:
            with suppress(TransferError):
                create_directory(root / relative, sync=True)
        create_directory(root / relative, sync=True)
    assert observed.reached == [1] * len(faults)
    return observed.calls


def told(root: Path, relative: str, fault: Fault) -> tuple[str, str, int | None]:
    """What `create_directory` returns or raises when a call fails."""
    with observing(root, [fault]) as observed:
        try:
            reason, error, number = create_directory(root / relative, sync=True), "", None
        except TransferError as raised:
            reason, error, number = "", str(raised), raised.errno
    assert observed.reached == [1]
    return reason, error, number


def described(root: Path, calls: list[Call]) -> list[tuple[str, str]]:
    """The calls that make and sync directories, with their paths below `root`."""
    paths = [(call.name, Path(call.path).relative_to(root)) for call in calls]
    return [
        (name, "" if path == Path() else str(path))
        for name, path in paths
        if name in ("mkdir", *SYNCS)
    ]


def test_each_level_is_synced_before_the_next(tmp_path: Path, observed_process: Ranks) -> None:
    (calls,) = observed_process.run(created, tmp_path, STEP, [])
    assert described(tmp_path, calls) == MADE


@pytest.mark.parametrize("sync", range(3))
def test_the_save_after_a_killed_one(sync: int, tmp_path: Path, observed_process: Ranks) -> None:
    killed = Fault("fsync", sync, errno.EIO)
    (calls,) = observed_process.run(created, tmp_path, STEP, [killed])
    image = Crash(tmp_path, {}, calls).image(len(calls), lambda _: Fate.DROPPED)
    assert STEP in image
    # The test can fail: without what the second save synced, the directory is lost.
    first = next(index for index, call in enumerate(calls) if call.error == errno.EIO) + 1
    image = Crash(tmp_path, {}, calls).image(first, lambda _: Fate.DROPPED)
    assert STEP not in image


def test_what_was_made_before_and_what_leads_there_by_a_link(
    tmp_path: Path, observed_process: Ranks
) -> None:
    """A link's own parent says nothing of where the checkpoint is."""
    (tmp_path / "disk" / "step").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "step")
    for relative, synced in (("disk/step", "disk"), ("link", "disk"), ("disk", "")):
        (calls,) = observed_process.run(created, tmp_path, relative, [])
        assert described(tmp_path, calls) == [("fsync", synced)]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("open", 0, errno.EACCES),
        Fault("open", 0, errno.EPERM),
        Fault("fsync", 0, errno.EINVAL),
    ],
    ids=str,
)
def test_what_was_made_before_and_cannot_be_synced(
    fault: Fault, tmp_path: Path, observed_process: Ranks
) -> None:
    """That is told where it was there before, and fails a save that makes it."""
    ((reason, error, number),) = observed_process.run(told, tmp_path, "new", fault)
    assert (reason, number) == ("", fault.error)
    assert "sync=False" in error
    assert (tmp_path / "new").exists() == (fault.name == "fsync")
    (tmp_path / "there").mkdir()
    ((reason, error, _),) = observed_process.run(told, tmp_path, "there", fault)
    assert str(tmp_path / "there") in reason
    assert error == ""


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("name", ["open", "fsync"])
def test_any_other_failure_to_sync_what_was_made_before(
    name: str, number: int, tmp_path: Path, observed_process: Ranks
) -> None:
    (tmp_path / "there").mkdir()
    fault = Fault(name, 0, number)
    ((reason, error, told_number),) = observed_process.run(told, tmp_path, "there", fault)
    assert (reason, told_number) == ("", number)
    assert str(tmp_path) in error
