"""Trial: a save or a load under injected faults, and whether what came of it is right.

All of it runs in a process with the preloaded library, and many trials in one process: what a
failed one left in the process would show up in the next.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import CheckpointExistsError, NotCommittedError
from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.refusal import snapshot, unwrapped
from tests.checkpoint.storage import dcp_load, dcp_save, save
from tests.faults.calls.injector import Call, Fault, Observed, observing

__all__ = [
    "KINDS",
    "NEW",
    "OLD",
    "TRANSFER_BYTES",
    "Found",
    "Trial",
    "generation_of",
    "recorded",
    "recorded_with_data",
    "state",
    "tried",
]

# A save to a new directory, to one whose checkpoint may be replaced, to one where it may not, and
# a load.
KINDS = ("save", "overwrite", "refused save", "load")
TRANSFER_BYTES = 256 << 10
OLD, NEW, NEXT = 1, 2, 3
# What the kernel has to take away after a thread has been joined, and nobody can wait for.
_LOOKS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Trial:
    """What is done, by which engine, and what fails meanwhile."""

    kind: str
    engine: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.kind}, {self.engine}, {' and '.join(map(str, self.faults))}"


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a trial.

    Parameters
    ----------
    observed
        The calls, the error that was raised, and what was left open.
    generation
        What an undisturbed load finds afterwards; 0 if nothing is committed.
    names
        Files in the checkpoint's directory.
    retries
        As the report has it, if there is one.
    """

    observed: Observed
    generation: int
    names: list[str]
    retries: int | None


def state(generation: int) -> dict[str, Any]:
    """Several transfers, a small tensor, one that has to be packed, and a byte item."""
    return dict(_made(generation))


@cache
def _made(generation: int) -> dict[str, Any]:
    """A state; to make its random bytes takes longer than to save them."""
    return {
        "large": dense_tensor((300_001,), torch.float32, seed=generation),
        "small": dense_tensor((11,), torch.int16, seed=generation),
        "gaps": dense_tensor((9000,), torch.float64, seed=generation)[::3],
        "epoch": f"epoch {generation}",
    }


def recorded(root: Path, kind: str, engine: str) -> list[Call]:
    """The calls without a fault."""
    found = tried(root, Trial(kind, engine, ()))
    refused = isinstance(found.observed.error, CheckpointExistsError)
    assert refused if kind == "refused save" else found.observed.error is None, found
    return found.observed.calls


def recorded_with_data(root: Path, kind: str, engine: str) -> tuple[dict[str, bytes], list[Call]]:
    """The files in `root` before a save of generation `NEW`, and its calls with what they write.

    Of kind "made", the calls begin with that of a trainer, or of a killed save, that made the
    directory and did not sync it.
    """
    path = root / "step"
    overwrite = kind == "overwrite"
    if overwrite:
        save(state(OLD), path)
    before = snapshot(root)
    with (
        GDSWriter(
            path, engine=engine, overwrite=overwrite, transfer_bytes=TRANSFER_BYTES
        ) as writer,
        observing(root, data=True) as observed,
    ):
        if kind == "made":
            path.mkdir()
        dcp_save(state(NEW), storage_writer=writer, no_dist=True)
    return before, observed.calls


def tried(root: Path, trial: Trial) -> Found:
    """Carry out one trial in a directory of its own, which is gone afterwards."""
    path = root / "step"
    try:
        if trial.kind != "save":
            with GDSWriter(path, transfer_bytes=TRANSFER_BYTES) as writer:
                _save_quickly(writer, OLD, path)
        return _loaded(path, trial) if trial.kind == "load" else _saved(path, trial)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(root / "next", ignore_errors=True)


def generation_of(path: Path) -> int:
    """Which state a load finds; anything that is no state as it was saved is an error."""
    target = targets()
    with GDSReader(path) as reader:
        try:
            dcp_load(target, storage_reader=reader, no_dist=True)
        except BaseException as error:
            if isinstance(unwrapped(error), NotCommittedError):
                return 0
            raise
        assert reader.report is not None
        assert reader.report.unverified_bytes == 0
    return generation_in(target)


def targets() -> dict[str, Any]:
    """A state to load into, filled with what no generation holds."""
    return {
        name: filled_tensor(value.shape, value.dtype) if torch.is_tensor(value) else ""
        for name, value in state(OLD).items()
    }


def generation_in(target: dict[str, Any]) -> int:
    """Which state this is, bit for bit."""
    plain = _plain(target)
    for generation in (OLD, NEW, NEXT):
        if plain == _plain(state(generation)):
            return generation
    raise AssertionError("a load succeeded with bytes that nobody saved")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Tensors as their bytes."""
    return {name: raw(v) if torch.is_tensor(v) else v for name, v in values.items()}


def _saved(path: Path, trial: Trial) -> Found:
    """Save under the faults, look at what is there, and save once more by the same writer."""
    overwrite = trial.kind == "overwrite"
    with GDSWriter(
        path, engine=trial.engine, overwrite=overwrite, transfer_bytes=TRANSFER_BYTES
    ) as writer:
        observed = _under_faults(
            path, trial, lambda: dcp_save(state(NEW), storage_writer=writer, no_dist=True)
        )
        report = writer.report
        assert observed.error is not None or (report is not None and report.committed)
        assert observed.error is None or report is None or not report.committed
        generation = generation_of(path)
        names = sorted(file.name for file in path.iterdir()) if path.exists() else []
        following = path if overwrite else path.with_name("next")
        _save_quickly(writer, NEXT, following)
        assert generation_of(following) == NEXT
        # What the failed save could not remove, this one has.
        assert len(list(following.iterdir())) == 2
    return Found(observed, generation, names, None if report is None else report.retries)


def _loaded(path: Path, trial: Trial) -> Found:
    """Load under the faults, and once more by the same reader."""
    with GDSReader(path, engine=trial.engine, transfer_bytes=TRANSFER_BYTES) as reader:
        target, again = targets(), targets()
        observed = _under_faults(
            path, trial, lambda: dcp_load(target, storage_reader=reader, no_dist=True)
        )
        report = reader.report
        assert observed.error is not None or generation_in(target) == OLD
        dcp_load(again, storage_reader=reader, no_dist=True)
    names = sorted(file.name for file in path.iterdir())
    return Found(observed, generation_in(again), names, None if report is None else report.retries)


def _save_quickly(writer: GDSWriter, generation: int, path: Path) -> None:
    """Save without faults; what is observed is not synced either, which takes most of the time."""
    with observing(path.parent):
        dcp_save(
            state(generation), storage_writer=writer, checkpoint_id=os.fspath(path), no_dist=True
        )


def _under_faults(path: Path, trial: Trial, action: Callable[[], object]) -> Observed:
    """Carry out an action; what it raised, and what it left open."""
    descriptors, threads = _descriptors(), _threads()
    error = None
    with observing(path.parent, trial.faults) as observed:
        try:
            action()
        except BaseException as raised:  # noqa: BLE001  DCP raises a BaseException
            error = unwrapped(raised)
    observed.error = error
    observed.leaked = sorted(_descriptors() - descriptors) + _new_threads(threads)
    return observed


def _new_threads(before: set[str]) -> list[str]:
    """The threads that are there now, unless they are only on their way out."""
    for _ in range(_LOOKS_MAX):
        if _threads() <= before:
            return []
        os.sched_yield()
    return sorted(_threads() - before)


def _descriptors() -> set[str]:
    """What is open, by number and target."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        # The descriptor that lists them is gone by then.
        with suppress(FileNotFoundError):
            found.add(f"{path.name} {path.readlink()}")
    return found


def _threads() -> set[str]:
    """The kernel's threads of this process."""
    return {path.name for path in Path("/proc/self/task").iterdir()}
