"""Ranks that load while a process overwrites get one checkpoint, or are told that they did not.

Method: a process saves one generation after the other into a directory, without a pause or with
one of random length, and two ranks load from it again and again. Both have to get all of the same
generation, bit for bit, or the same error, which says that the checkpoint was overwritten.
For some of the loads the process is held between two saves: those must succeed, each with a newer
generation than the one before, however busy the machine is.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.synchronize import Event, Lock
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from dcp_gds import GDSReader
from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.refusal import unwrapped
from tests.checkpoint.storage import dcp_load, save
from tests.faults.tally import Tally
from tests.ranks import EXPECTED_WARNINGS, PR_SET_PDEATHSIG, Ranks

MIB = 1 << 20
SEED = 7
# About what a load takes: some saves fall into a load, some loads between two saves.
PAUSE_S_MAX = 0.4
EXIT_S = 60.0
HELD_EVERY = 3
COUNTS = pytest.mark.parametrize("loads", [12, pytest.param(100, marks=pytest.mark.slow)])


def state_of(generation: int) -> dict[str, Any]:
    """Tensors of other bits in each generation, and which generation it is."""
    tensors = {
        f"small{n}": dense_tensor((n + 1, 50), torch.int16, seed=generation) for n in range(40)
    }
    large = {f"large{n}": dense_tensor((1 << 20,), torch.uint8, seed=generation) for n in range(3)}
    return {"generation": generation, **tensors, **large}


@dataclass(frozen=True)
class Saving:
    """What the process that saves and the test tell each other."""

    saved: Event
    enough: Event
    # Held during each save, and by a test that wants none.
    turn: Lock

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait until one more save has ended, and let none begin inside the block."""
        self.saved.clear()
        assert self.saved.wait(EXIT_S)
        assert self.turn.acquire(timeout=EXIT_S)
        try:
            yield
        finally:
            self.turn.release()


def keep_saving(path: Path, seed: int, saving: Saving) -> None:
    """Save generation 1 and go on to the next ones until it is enough."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    draw = random.Random(seed)
    generation = 0
    pause = 0.0
    while not saving.enough.wait(pause):
        generation += 1
        with saving.turn:
            save(state_of(generation), path, overwrite=True)
        saving.saved.set()
        pause = draw.choice([0.0, draw.uniform(0.0, PAUSE_S_MAX)])


@contextmanager
def saver(path: Path, seed: int) -> Iterator[Saving]:
    """A process that saves into `path` all the time, and has saved once when the block begins."""
    context = multiprocessing.get_context("spawn")
    saving = Saving(saved=context.Event(), enough=context.Event(), turn=context.Lock())
    process = context.Process(target=keep_saving, args=(path, seed, saving), daemon=True)
    process.start()
    try:
        assert saving.saved.wait(EXIT_S)
        yield saving
        assert process.is_alive()
    finally:
        saving.enough.set()
        process.join(EXIT_S)
        process.kill()
        process.join()
    assert process.exitcode == 0


def load_once(path: Path) -> str:
    """What this rank gets: the generation if all of it is there, or what it is told."""
    target: dict[str, Any] = {
        name: filled_tensor(value.shape, value.dtype) if isinstance(value, torch.Tensor) else None
        for name, value in state_of(1).items()
    }
    try:
        with GDSReader(path) as reader:
            dcp_load(target, storage_reader=reader)
    except CheckpointException as error:
        return f"{type(unwrapped(error)).__name__}: {unwrapped(error)}"
    expected = state_of(target["generation"])
    torn = [
        name
        for name, value in target.items()
        if isinstance(value, torch.Tensor) and raw(value) != raw(expected[name])
    ]
    return f"a mixture: {torn}" if torn else f"generation {target['generation']}"


@COUNTS
def test_two_ranks_load_while_a_process_overwrites(
    loads: int, tmp_path: Path, ranks: Callable[[int], Ranks], tally: Tally
) -> None:
    generations: Counter[str] = Counter()
    with saver(tmp_path, SEED) as saving:
        for number in range(loads):
            held = number % HELD_EVERY == 0
            with saving.held() if held else nullcontext():
                one, two = ranks(2).run(load_once, tmp_path)
            assert one == two, f"seed {SEED}, load {number}"
            if one.startswith("generation "):
                generations[one] += held
                kind = "the same checkpoint"
            else:
                assert one.startswith("CorruptCheckpointError: "), one
                assert "overwritten while" in one
                assert not held, f"seed {SEED}, load {number}: {one}"
                kind = "told to load again"
            tally.add("two ranks load while a process overwrites", kind)
    # A save ended before each of the loads that were alone.
    assert sum(generations.values()) == len(range(0, loads, HELD_EVERY))
    assert max(generations.values()) == 1
