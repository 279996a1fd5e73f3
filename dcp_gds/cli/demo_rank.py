"""Demo rank: the process that trains as one rank, run as `python -m dcp_gds.cli.demo_rank`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh

from dcp_gds import GDSReader
from dcp_gds.cli.demo_events import TEXT_LENGTH_MAX, EventPipe, Loaded, RankFailed, StepDone
from dcp_gds.cli.demo_model import Batches, build_model, next_byte_loss
from dcp_gds.cli.demo_saver import Saver
from dcp_gds.cli.demo_settings import RankTask
from dcp_gds.cli.demo_text import documentation
from dcp_gds.errors import DcpGdsError

__all__ = ["main"]

# The global batch has two halves: one for each of two ranks, or both for one.
HALVES = 2
LEARNING_RATE = 1e-3
# A rank that is slow to start on a busy machine needs seconds; a dead one is noticed at once.
GROUP_TIMEOUT = timedelta(seconds=60)


def main() -> int:
    """Do the task of the first argument; events go to the file descriptor of the second."""
    task = RankTask.from_json(sys.argv[1])
    pipe = EventPipe(int(sys.argv[2]))
    try:
        _run(task, pipe)
    # CheckpointException is a BaseException. Whatever it is, the parent has to hear of it.
    except (Exception, CheckpointException) as error:  # noqa: BLE001  passed on, with its type
        pipe.send(RankFailed(task.rank, _describe(error)[:TEXT_LENGTH_MAX]))
        return 1
    return 0


def _run(task: RankTask, pipe: EventPipe) -> None:
    """Join the group, train, and leave."""
    # Two cores for two ranks, and one thread sums in one order.
    torch.set_num_threads(1)
    # Without it gloo looks up the host's name, which not every container can resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task.store}",
        rank=task.rank,
        world_size=task.world_size,
        timeout=GROUP_TIMEOUT,
    )
    try:
        _train(task, pipe)
    finally:
        dist.destroy_process_group()


def _train(task: RankTask, pipe: EventPipe) -> None:
    """Train to the last step, from the first one or a checkpoint."""
    settings = task.settings
    model = build_model(settings, init_device_mesh("cpu", (task.world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    batches = Batches(documentation(), settings)
    saver = Saver(task, pipe)
    first = 1
    if task.resume_from is not None:
        first = _restore(task, model, optimizer, pipe) + 1
    for step in range(first, settings.steps + 1):
        losses = _take_step(task, model, optimizer, batches, step=step)
        pipe.send(StepDone(task.rank, step, losses))
        saver.collect(wait=False)
        if task.writers and settings.is_save_due(step):
            saver.save(_state(model, optimizer, step=step), step=step)
    if task.alone_saves:
        saver.collect(wait=True)
        saver.save_alone(_state(model, optimizer, step=settings.steps), step=settings.steps)
    saver.close()


def _take_step(
    task: RankTask,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    *,
    step: int,
) -> dict[int, float]:
    """Take an optimizer step on this rank's halves and return their losses.

    The gradient is (g0 + g1) / 2 either way: FSDP adds the ranks' and divides by their number,
    one rank adds halves that were divided before. Dividing by two is exact and adding two numbers
    commutes, so both have the same bits; and AdamW treats each element by itself.
    """
    losses: dict[int, float] = {}
    halves = range(task.rank, HALVES, task.world_size)
    for half in halves:
        loss = next_byte_loss(model, *batches.half(step=step, half=half))
        torch.autograd.backward(loss / len(halves))
        losses[half] = loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return losses


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, *, step: int) -> dict[str, Any]:
    """What a checkpoint holds."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step}


def _restore(
    task: RankTask, model: nn.Module, optimizer: torch.optim.Optimizer, pipe: EventPipe
) -> int:
    """Load the checkpoint to resume from and return its step."""
    assert task.resume_from is not None
    state = _state(model, optimizer, step=0)
    began = time.perf_counter()
    with GDSReader(task.resume_from) as reader:
        load(state, storage_reader=reader)
        report = reader.report
    seconds = time.perf_counter() - began
    assert report is not None, "a finished load has one"
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    step: int = state["step"]
    pipe.send(Loaded(task.rank, step, report.engine, report.bytes, report.verified_bytes, seconds))
    return step


def _describe(error: BaseException) -> str:
    """One line; of the errors that DCP gathered from all ranks, the first."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, CheckpointException):
        # A traceback does not survive the way between ranks; DCP sends its frames beside the error.
        error, frames = next(iter(error.failures.values()))
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, DcpGdsError) and frames:
        # It should not happen at all, so it has to say where it did.
        text += f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return text


if __name__ == "__main__":
    sys.exit(main())
