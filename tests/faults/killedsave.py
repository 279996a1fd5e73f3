"""Killed save: a save in processes of its own, ended by SIGKILL at a step or after a time.

Importing torch takes seconds, so a server that has imported it forks the processes of each save,
before it has any thread.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from dcp_gds import GDSWriter
from tests.faults.steps import Steps
from tests.ranks import EXPECTED_WARNINGS, PR_SET_PDEATHSIG

__all__ = ["Order", "Run", "carry_out", "state_of"]

KIB, MIB = 1 << 10, 1 << 20
# A save takes a tenth of a second; only a hang takes this long.
LIMIT_S = 120.0
# What a save imports when it needs it, besides what this module imports.
PRELOAD = ["torch._dynamo", "torch._subclasses.fake_tensor", __name__]


@dataclass(frozen=True, slots=True)
class Order:
    """A save, and when to end it.

    Parameters
    ----------
    generation
        Which state is saved: see `state_of`.
    step, rank
        The step before or after which it is killed, and the rank that has to reach it; None for
        none.
    alone
        Whether only that rank is killed: the others have to end by themselves.
    """

    path: Path
    generation: int
    world_size: int = 1
    asynchronous: bool = False
    step: str | None = None
    rank: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a save.

    Parameters
    ----------
    killed
        Ranks that SIGKILL ended.
    failed
        What the ranks raised that were told of a failure.
    steps
        For each rank that finished: all steps that it reached.
    seconds
        From when all ranks were about to call `save` until the last one had ended.
    """

    killed: frozenset[int]
    failed: dict[int, str]
    steps: dict[int, list[str]]
    seconds: float


def state_of(generation: int, *, world_size: int) -> dict[str, Any]:
    """The whole state of a generation: what each of the ranks saves, under names of its own."""
    state: dict[str, Any] = {}
    for rank in range(world_size):
        state |= _state_of_rank(generation, rank)
    return state


def carry_out(order: Order, *, kill_after_s: float | None = None) -> Run:
    """Run a save, killing all its ranks after a time unless they have finished.

    The time counts from when all ranks are about to call `save`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory(prefix="killed-") as directory, ExitStack() as stack:
        processes: list[ForkServerProcess] = []
        connections: list[Connection] = []
        for rank in range(order.world_size):
            here, there = context.Pipe()
            stack.callback(here.close)
            process = context.Process(
                target=_serve, args=(there, order, rank, Path(directory, "store")), daemon=True
            )
            process.start()
            stack.callback(process.close)
            stack.callback(process.join)
            stack.callback(process.kill)
            there.close()
            processes.append(process)
            connections.append(here)
        for connection in connections:
            assert connection.poll(LIMIT_S), "a rank does not get ready"
            assert connection.recv() == "ready"
        began = time.monotonic()
        for connection in connections:
            connection.send("go")
        if kill_after_s is not None:
            wait([process.sentinel for process in processes], timeout=kill_after_s)
            for process in processes:
                process.kill()
        return _run(processes, connections, began=began)


def _run(processes: list[ForkServerProcess], connections: list[Connection], *, began: float) -> Run:
    """Wait for all ranks to end, and collect what they say."""
    killed: set[int] = set()
    failed: dict[int, str] = {}
    steps: dict[int, list[str]] = {}
    for rank, (process, connection) in enumerate(zip(processes, connections, strict=True)):
        try:
            assert connection.poll(LIMIT_S), f"rank {rank} hangs"
            error, reached = connection.recv()
        except (EOFError, ConnectionResetError):
            process.join(LIMIT_S)
            assert process.exitcode == -signal.SIGKILL, f"rank {rank} ended with {process.exitcode}"
            killed.add(rank)
            continue
        if error is None:
            steps[rank] = reached
        else:
            failed[rank] = error
    return Run(frozenset(killed), failed, steps, time.monotonic() - began)


def _state_of_rank(generation: int, rank: int) -> dict[str, Any]:
    """What one rank saves: transfers from memory, small, strided and byte items."""
    generator = torch.Generator().manual_seed(generation * 64 + rank)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randint(1 << 30, shape, dtype=torch.int32, generator=generator)

    return {
        f"{rank}.large": drawn(300_000),
        f"{rank}.small": drawn(3, 5),
        f"{rank}.strided": drawn(30_000, 4)[:, 1],
        f"{rank}.generation": generation,
        f"{rank}.text": f"{generation} " * 20_000,
    }


def _serve(connection: Connection, order: Order, rank: int, store: Path) -> None:
    """One rank of a save."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message)
    pids: list[int] = [os.getpid()]
    if order.world_size > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=order.world_size,
            timeout=timedelta(seconds=LIMIT_S),
        )
        pids = [0] * order.world_size
        dist.all_gather_object(pids, os.getpid())
    reached: list[str] = []

    def reach(step: str) -> None:
        reached.append(step)
        if (step, rank) == (order.step, order.rank):
            if not order.alone:
                for pid in {*pids} - {os.getpid()}:
                    os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    state = _state_of_rank(order.generation, rank)
    connection.send("ready")
    connection.recv()
    Steps(order.path, reach)
    error = None
    try:
        _save(order, state)
    except (CheckpointException, RuntimeError) as raised:  # gloo: the peer is gone
        error = repr(raised)
    connection.send((error, list(reached)))


def _save(order: Order, state: dict[str, Any]) -> None:
    """Save as the order says."""
    with GDSWriter(
        order.path, overwrite=True, transfer_bytes=256 * KIB, staging_bytes_max=4 * MIB
    ) as writer:
        if order.asynchronous:
            response = async_save(state, storage_writer=writer)
            assert isinstance(response, Future)
            response.result(LIMIT_S)
        else:
            dcp_save(state, storage_writer=writer)
