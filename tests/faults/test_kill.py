"""A save that SIGKILL ends at any moment leaves the old checkpoint or the new one, bit for bit.

Method: saves in processes of their own are killed before and after each step they take, and at
random moments. Each time this process loads what is there, saves again into the same directory,
and looks for what is left.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from dcp_gds.errors import NotCommittedError
from tests.checkpoint.rawbytes import raw
from tests.checkpoint.refusal import unwrapped
from tests.checkpoint.shardfiles import metadata_of
from tests.checkpoint.storage import load, save
from tests.faults.killedsave import Order, Run, carry_out, state_of
from tests.faults.tally import Tally

COMMITTED = "after rename temporary metadata 1"
# Whatever else a save does, it takes these steps; else the tests would test little.
STEPS = {
    "fsync parent 1",
    "create shard file 1",
    "allocate 1",
    "transfer 1",
    "transfer 7",
    "truncate 1",
    "sync shard file 1",
    "fsync directory 1",
    "close shard file 1",
    "check items 1",
    "lock directory 1",
    "check shard files 1",
    "fsync temporary metadata 1",
    "rename temporary metadata 1",
    "fsync directory 2",
    "look for leftovers 1",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """How the killed saves are made."""

    overwrite: bool
    world_size: int
    asynchronous: bool

    def __str__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        verb = "async_save" if self.asynchronous else "save"
        return f"{verb} {'over an old one' if self.overwrite else 'for the first time'}, {ranks}"


MODES = [
    Mode(overwrite, world_size, asynchronous)
    for world_size in (1, 2)
    for asynchronous in (False, True)
    for overwrite in (False, True)
]


class Site:
    """Directories in which saves are killed, and what is in the present one."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self._path = path
        self._mode = mode
        self._count = 0
        self.new = 1
        self.old: int | None = None

    def order(self) -> Order:
        """A save of the next generation: into the same directory, or always a fresh one."""
        mode = self._mode
        if not mode.overwrite:
            self._count += 1
            self.old = None
        elif self.old is None:
            self._save()
        self.new += 1
        return Order(self._directory, self.new, mode.world_size, mode.asynchronous)

    def look(self) -> str:
        """Which checkpoint is there; afterwards another is, and nothing else."""
        outcome = {self.old: "old checkpoint", self.new: "new checkpoint"}[self._loaded()]
        self.new += 1
        self._save()
        assert self._loaded() == self.new
        named = {info.relative_path for info in metadata_of(self._directory).storage_data.values()}
        assert {entry.name for entry in self._directory.iterdir()} == {".metadata", *named}
        return outcome if self._mode.overwrite or outcome != "old checkpoint" else "no checkpoint"

    @property
    def _directory(self) -> Path:
        return self._path / f"checkpoint{self._count}"

    def _save(self) -> None:
        """Save in this process."""
        state = state_of(self.new, world_size=self._mode.world_size)
        save(state, self._directory, overwrite=True)
        self.old = self.new

    def _loaded(self) -> int | None:
        """The generation of what is there, every bit of it; None if nothing is committed."""
        target = state_of(0, world_size=self._mode.world_size)
        try:
            load(target, self._directory)
        except (NotCommittedError, CheckpointException) as error:
            if not isinstance(unwrapped(error), NotCommittedError):
                raise
            return None
        generation = target["0.generation"]
        expected = state_of(generation, world_size=self._mode.world_size)
        assert bits(target) == bits(expected), f"a mixture: {generation} and something else"
        return int(generation)


def bits(state: dict[str, Any]) -> dict[str, object]:
    return {
        name: raw(value) if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def traced(site: Site, mode: Mode) -> Run:
    """A save that nothing ends."""
    run = carry_out(site.order())
    assert (run.killed, run.failed) == (frozenset(), {})
    for step in STEPS:
        assert {f"before {step}", f"after {step}"} <= {*run.steps[0]}, step
    assert ("before remove shard file 1" in run.steps[0]) == mode.overwrite
    assert ("before stage 1" in run.steps[0]) == mode.asynchronous
    assert site.look() == "new checkpoint"
    return run


def kills(run: Run) -> Iterator[tuple[int, str, bool]]:
    """Rank and step of every possible kill, and whether the new checkpoint is committed by then."""
    for rank, steps in run.steps.items():
        for index, step in enumerate(steps):
            yield rank, step, rank == 0 and index >= steps.index(COMMITTED)


def kill_at_steps(path: Path, mode: Mode, tally: Tally, *, alone: bool, every: int = 1) -> None:
    """Kill a save at every step, or at every n-th."""
    site = Site(path, mode)
    for rank, step, committed in list(kills(traced(site, mode)))[::every]:
        run = carry_out(replace(site.order(), step=step, rank=rank, alone=alone))
        told = f"{mode}, rank {rank} {step}: {run}"
        if alone:
            assert rank in run.killed, told
            assert run.failed.keys() == {1 - rank}, told
        else:
            assert run.killed == frozenset(range(mode.world_size)), told
        outcome = site.look()
        assert (outcome == "new checkpoint") == committed, f"{told}: {outcome}"
        who = "1 of 2 ranks" if alone else f"{mode.world_size} of {mode.world_size} ranks"
        tally.add(f"SIGKILL at a step, {who}", outcome)


ALONE = [False, True]
OF_ONE = [mode for mode in MODES if mode.world_size == 1 and not mode.asynchronous]
OF_ONE_ASYNC = [mode for mode in MODES if mode.world_size == 1 and mode.asynchronous]
OF_TWO = [mode for mode in MODES if mode.world_size == 2]


def name_of(alone: bool) -> str:
    return "one" if alone else "both"


@pytest.mark.parametrize("mode", OF_ONE, ids=str)
def test_killed_at_each_step(mode: Mode, tmp_path: Path, tally: Tally) -> None:
    kill_at_steps(tmp_path, mode, tally, alone=False)


@pytest.mark.parametrize("mode", OF_ONE_ASYNC, ids=str)
def test_killed_in_the_background(mode: Mode, tmp_path: Path, tally: Tally) -> None:
    kill_at_steps(tmp_path, mode, tally, alone=False, every=4)


@pytest.mark.parametrize("alone", ALONE, ids=name_of)
@pytest.mark.parametrize("mode", OF_TWO, ids=str)
def test_two_ranks_killed(mode: Mode, alone: bool, tmp_path: Path, tally: Tally) -> None:
    kill_at_steps(tmp_path, mode, tally, alone=alone, every=13)


@pytest.mark.slow
@pytest.mark.parametrize("mode", OF_ONE_ASYNC, ids=str)
def test_killed_at_each_step_in_the_background(mode: Mode, tmp_path: Path, tally: Tally) -> None:
    kill_at_steps(tmp_path, mode, tally, alone=False)


@pytest.mark.slow
@pytest.mark.parametrize("alone", ALONE, ids=name_of)
@pytest.mark.parametrize("mode", OF_TWO, ids=str)
def test_two_ranks_killed_at_each_step(
    mode: Mode, alone: bool, tmp_path: Path, tally: Tally
) -> None:
    kill_at_steps(tmp_path, mode, tally, alone=alone)


def kill_at_random(path: Path, tally: Tally, *, seed: int, times: int) -> None:
    """Kill saves of all modes, by turns at random steps and after random times."""
    chance = random.Random(seed)
    sites = [Site(path / str(index), mode) for index, mode in enumerate(MODES)]
    runs = [traced(site, mode) for site, mode in zip(sites, MODES, strict=True)]
    for count in range(times):
        index = chance.randrange(len(MODES))
        mode, site = MODES[index], sites[index]
        if count % 2:
            rank, step, _ = chance.choice(list(kills(runs[index])))
            when = f"rank {rank} {step}"
            run = carry_out(replace(site.order(), step=step, rank=rank))
        else:
            after_s = chance.uniform(0.0, 1.2 * runs[index].seconds)
            when = f"after {after_s} s"
            run = carry_out(site.order(), kill_after_s=after_s)
        finished = not run.killed and not run.failed
        try:
            outcome = site.look()
            assert outcome == "new checkpoint" or not finished
        except BaseException as error:
            error.add_note(f"seed {seed}, kill {count}: {mode}, {when}: {run}")
            raise
        tally.add("SIGKILL at a random moment", "finished before" if finished else outcome)


@pytest.mark.parametrize("seed", [20])
def test_killed_at_random(seed: int, tmp_path: Path, tally: Tally) -> None:
    kill_at_random(tmp_path, tally, seed=seed, times=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [21, 22])
def test_killed_at_random_again_and_again(seed: int, tmp_path: Path, tally: Tally) -> None:
    kill_at_random(tmp_path, tally, seed=seed, times=200)
