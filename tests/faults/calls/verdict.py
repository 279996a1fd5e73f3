"""Verdict: whether what came of a save or load under a fault is right, and what to call it."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

from dcp_gds.errors import CheckpointExistsError, StorageFullError, TransferError
from tests.faults.calls.injector import SHORT, Call
from tests.faults.calls.trial import NEW, OLD, Found, Trial

__all__ = ["verdict"]

FULL = (errno.ENOSPC, errno.EDQUOT)
# What a save's promise rests on. It may not succeed after one of these has failed, even though the
# bytes can be loaded now: what fails behind them is told once. Everything else may fail where the
# save goes on without it, and where what it wrote is found whole: advice about the page cache, a
# look at the mount, the removal of what is superfluous (it costs room, and the report counts it),
# `close` of what was only read.
NEEDED = {
    *(("fallocate", "shard"), ("ftruncate", "shard"), ("fdatasync", "shard"), ("close", "shard")),
    *(("sync_file_range", "shard"), ("write", "temporary"), ("fsync", "temporary")),
    *(("close", "temporary"), ("rename", "temporary"), ("fsync", "directory")),
}
# What a save that succeeds has done without a failure.
DONE = (
    *(("fdatasync", "shard"), ("fsync", "directory"), ("fsync", "temporary")),
    *(("rename", "temporary"), ("fsync", "directory")),
)


def verdict(root: Path, trial: Trial, found: Found) -> tuple[str, str]:
    """The outcome in a few words, and what is wrong with it; "" if nothing is."""
    error = found.observed.error
    judge = {"load": _of_load, "refused save": _of_refused}.get(trial.kind, _of_save)
    outcome, wrong = judge(trial, found)
    if error is not None and not isinstance(error, CheckpointExistsError):
        wrong = wrong or _of_error(root, trial, error)
    if found.observed.leaked:
        wrong = f"left open: {found.observed.leaked}"
    return outcome, wrong


def _of_load(trial: Trial, found: Found) -> tuple[str, str]:
    """A load gives the right bytes or an error, and leaves the checkpoint as it is."""
    if found.generation != OLD or len(found.names) != 2:
        return "", f"afterwards there is {found.generation} in {found.names}"
    if found.observed.error is None:
        return "right bytes", ""
    return type(found.observed.error).__name__, _of_short(trial)


def _of_refused(trial: Trial, found: Found) -> tuple[str, str]:
    """Where it cannot be seen whether a checkpoint is there, none is replaced either."""
    if found.observed.error is None or found.generation != OLD or len(found.names) != 2:
        return "", f"afterwards there is {found.generation} in {found.names}"
    return f"{type(found.observed.error).__name__}, old checkpoint", _of_short(trial)


def _of_save(trial: Trial, found: Found) -> tuple[str, str]:
    """A save leaves the old checkpoint and nothing else, or the new one and nothing that is needed.

    The rename is the line between them. An error behind it means that the new checkpoint may not
    outlive a power cut, so the files of both stay. An error of the rename itself leaves the shard
    file: on a network filesystem the rename may have been done, or be done later.
    """
    error = found.observed.error
    renames = [call for call in found.observed.calls if call.name == "rename"]
    renamed = any(call.result == 0 for call in renames)
    temporaries = [name for name in found.names if name.endswith(".tmp")]
    there = f"afterwards there is {found.generation} in {found.names}"
    before = OLD if trial.kind == "overwrite" else 0
    if error is None:
        wrong = "" if found.generation == NEW and not temporaries else there
        return "new checkpoint", wrong or _of_success(trial, found)
    if any(fault.name == "rename" and fault.performed for fault in trial.faults) and renames:
        renamed = True
    if renamed:
        # The new one is there, and what it replaced has not been removed.
        whole = 2 if before == 0 else 3
        wrong = "" if found.generation == NEW and len(found.names) == whole else there
        return f"{type(error).__name__}, both kept", wrong
    kept = (0 if before == 0 else 2) + bool(renames) + _could_not_remove(trial)
    wrong = "" if found.generation == before and len(found.names) <= kept else there
    old = "old checkpoint" if before else "no checkpoint"
    return f"{type(error).__name__}, {old}", wrong or _of_short(trial)


def _of_success(trial: Trial, found: Found) -> str:
    """What is wrong with a success."""
    for call in found.observed.calls:
        if call.result == -1 and call.error != errno.EINTR and _described(call) in NEEDED:
            return f"it succeeded though {call.name} of {call.path} had failed"
    done = [_described(call) for call in found.observed.calls if call.result == 0]
    position = 0
    for needed in DONE:
        if needed not in done[position:]:
            return f"it succeeded without {needed}"
        position = done.index(needed, position) + 1
    # A failure to look or to remove keeps the replaced file.
    if len(found.names) > 2 + any(fault.error != SHORT for fault in trial.faults):
        return f"left behind: {found.names}"
    retried = sum(fault.name in ("pwrite", "pread") for fault in trial.faults)
    seen = [call for call in found.observed.calls if call.path.endswith(".distcp")]
    hit = sum(call.name == "pwrite" and call.error == errno.EIO for call in seen)
    if retried and hit and found.retries != hit:
        return f"{hit} calls failed and the report counts {found.retries} retries"
    return ""


def _of_error(root: Path, trial: Trial, error: BaseException) -> str:
    """What is wrong with an error: its class, its errno, its path, or that it does not travel."""
    if not isinstance(error, TransferError):
        return f"raised {error!r}"
    # The first fault is the one to be told; others came when what it had left was removed.
    if error.errno != trial.faults[0].error:
        return f"another errno: {error!r}"
    # That a read finds no room says nothing of a save's.
    full = error.errno in FULL
    if trial.kind != "load" and full != isinstance(error, StorageFullError):
        return f"another class: {error!r}"
    if not Path(error.filename).is_relative_to(root):
        return f"another path: {error!r}"
    return "" if str(pickle.loads(pickle.dumps(error))) == str(error) else "it does not travel"


def _of_short(trial: Trial) -> str:
    """A short transfer is resumed and never an error."""
    return "a short transfer was not resumed" if trial.faults[0].error == SHORT else ""


def _could_not_remove(trial: Trial) -> int:
    """How many of its own files a second fault may have kept the save from removing.

    The shard file; and the metadata's temporary one, if it was there already.
    """
    if not any(fault.name == "unlink" for fault in trial.faults):
        return 0
    return 2 if trial.faults[0].name == "write" else 1


def _described(call: Call) -> tuple[str, str]:
    """A call by its name and what it is about."""
    name = Path(call.path).name
    if name.endswith(".distcp"):
        return call.name, "shard"
    if name.endswith(".tmp"):
        return call.name, "temporary"
    return call.name, {".metadata": "metadata", "(unnamed)": "probe"}.get(name, "directory")
