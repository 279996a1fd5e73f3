"""A rank that fails in any step fails the save on every rank, which all learn why; the old stays.

Method: a fault beneath one of two ranks. Both compare what they are told, load the old checkpoint,
save by the same writers again, and count their descriptors and threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import NotCommittedError
from tests.checkpoint.refusal import unwrapped
from tests.checkpoint.shardfiles import metadata_of
from tests.checkpoint.storage import dcp_load, dcp_save
from tests.faults.rankfaults import BAD, FAULTS
from tests.faults.tally import Tally
from tests.ranks import Ranks

LIMIT_S = 120.0
COUNT = 300_000
CASES = [
    (name, rank)
    for name, fault in FAULTS.items()
    for rank in (0, 1)
    if rank == 0 or not fault.coordinator
]


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank learned of a failed save, and how it went on.

    Parameters
    ----------
    failed, error, number, text
        Ranks that failed, by DCP's exception; class, errno and message of the first one's cause.
    untouched
        Whether what was committed before still loads, or, without it, nothing does.
    descriptors, threads
        How many more there are after the failure than before the save.
    saved_again
        Whether the next save by the same writer was loaded, and left no other files.
    """

    failed: tuple[int, ...]
    error: str
    number: int | None
    text: str
    untouched: bool
    descriptors: int
    threads: int
    saved_again: bool


def save_by(writer: GDSWriter, state: dict[str, Any], *, asynchronous: bool) -> None:
    if not asynchronous:
        dcp_save(state, storage_writer=writer)
        return
    before = {*threading.enumerate()}
    response = async_save(state, storage_writer=writer)
    assert isinstance(response, Future)
    try:
        response.result(LIMIT_S)
    finally:
        # DCP's own thread ends by itself, a moment after it has set the result.
        for thread in {*threading.enumerate()} - before:
            thread.join(LIMIT_S)


def own_state(value: float) -> dict[str, Any]:
    rank = dist.get_rank()
    return {f"w{rank}": torch.full((COUNT,), value), f"n{rank}": value}


def holds(path: Path, value: float) -> bool:
    """Whether this rank's part of a checkpoint has a value."""
    target = own_state(-1.0)
    dcp_load(target, storage_reader=GDSReader(path))
    rank = dist.get_rank()
    return target[f"n{rank}"] == value and bool(target[f"w{rank}"].eq(value).all())


def is_empty(path: Path) -> bool:
    try:
        holds(path, 0.0)
    except CheckpointException as error:
        return isinstance(unwrapped(error), NotCommittedError)
    return False


def has_only_its_files(path: Path) -> bool:
    named = {info.relative_path for info in metadata_of(path).storage_data.values()}
    return {entry.name for entry in path.iterdir()} == {".metadata", *named}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def fail(path: Path, name: str, rank: int, asynchronous: bool, overwrite: bool) -> Told:
    """Save, with one rank failing."""
    fault = FAULTS[name]
    # gloo connects, torch imports, and the writer gets its staging memory.
    with GDSWriter(path / "first") as writer:
        save_by(writer, own_state(0.5), asynchronous=asynchronous)
    path = path / "checkpoint"
    if overwrite:
        dcp_save(own_state(1.0), storage_writer=GDSWriter(path))
    failing = dist.get_rank() == rank
    state = own_state(2.0)
    if failing and fault.value is not None:
        state[BAD] = fault.value
    told: BaseException | None = None
    failed: tuple[int, ...] = ()
    with GDSWriter(path, overwrite=overwrite, engine=fault.engine) as writer:
        descriptors, threads = open_descriptors(), threading.active_count()
        with fault.block() if failing else nullcontext():
            try:
                save_by(writer, state, asynchronous=asynchronous)
            except CheckpointException as error:
                told, failed = unwrapped(error), tuple(sorted(error.failures))
        descriptors, threads = (
            open_descriptors() - descriptors,
            threading.active_count() - threads,
        )
        untouched = holds(path, 1.0) if overwrite else is_empty(path)
        save_by(writer, own_state(3.0), asynchronous=asynchronous)
    saved_again = holds(path, 3.0)
    return Told(
        failed,
        type(told).__name__,
        told.errno if isinstance(told, OSError) else None,
        str(told),
        untouched,
        descriptors,
        threads,
        saved_again and has_only_its_files(path),
    )


def check(
    ranks: Ranks,
    path: Path,
    tally: Tally,
    *,
    name: str,
    rank: int,
    asynchronous: bool,
    overwrite: bool,
) -> None:
    """Let a rank fail and compare what both ranks were told with what they have to be told."""
    fault = FAULTS[name]
    told = ranks.run(fail, path, name, rank, asynchronous, overwrite)
    text = told[0].text
    assert fault.text in text
    expected = Told((rank,), fault.error, fault.number, text, True, 0, 0, True)
    assert told == [expected, expected]
    step, _, _ = name.partition(",")
    tally.add(f"1 of 2 ranks fails, {step}", "old checkpoint" if overwrite else "no checkpoint")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async"])
@pytest.mark.parametrize(("name", "rank"), CASES)
def test_a_rank_that_fails(
    name: str,
    rank: int,
    asynchronous: bool,
    tmp_path: Path,
    ranks: Callable[[int], Ranks],
    tally: Tally,
) -> None:
    # Half of the four combinations: the others are below.
    overwrite = asynchronous
    check(
        ranks(2),
        tmp_path,
        tally,
        name=name,
        rank=rank,
        asynchronous=asynchronous,
        overwrite=overwrite,
    )


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async"])
@pytest.mark.parametrize(("name", "rank"), CASES)
def test_a_rank_that_fails_otherwise(
    name: str,
    rank: int,
    asynchronous: bool,
    tmp_path: Path,
    ranks: Callable[[int], Ranks],
    tally: Tally,
) -> None:
    overwrite = not asynchronous
    check(
        ranks(2),
        tmp_path,
        tally,
        name=name,
        rank=rank,
        asynchronous=asynchronous,
        overwrite=overwrite,
    )
