"""Storm trainer: a training loop that changes its parameters, and saves once while it runs."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from dcp_gds import GDSWriter

__all__ = ["CONTENDERS"]

CONTENDERS = (
    "stock FileSystemWriter",
    "stock, DefaultStager",
    "GDSWriter",
    "GDSWriter, guard",
)
MIB = 1 << 20
TENSORS = 16
# What the data loader looks at in one iteration.
BATCH_BYTES = 128 * MIB
ITERATIONS_BEFORE = 8
ITERATIONS_AFTER = 8
# An iteration takes half a second; a storm is over long before.
ITERATIONS_MAX = 400


def main() -> None:
    """Arguments: contender, directory, bytes of state, bytes of the loader's working set."""
    warnings.simplefilter("ignore")
    contender, directory, state_bytes, loader_bytes = sys.argv[1:]
    torch.set_num_threads(1)
    loader = torch.ones(int(loader_bytes), dtype=torch.uint8)
    elements = int(state_bytes) // TENSORS // 4
    parameters = [torch.nn.Parameter(torch.ones(elements)) for _ in range(TENSORS)]
    optimizer = torch.optim.SGD(parameters)
    state = {f"w{number:02}": value for number, value in enumerate(parameters)}
    future: Future[Any] | None = None
    left = ITERATIONS_AFTER
    with contextlib.ExitStack() as stack:
        options = _contender(contender, Path(directory), optimizer, stack)
        for number in range(ITERATIONS_MAX):
            blocked_s = 0.0
            began = time.monotonic()
            if number == ITERATIONS_BEFORE:
                answer = async_save(state, no_dist=True, **options)
                future = answer if isinstance(answer, Future) else answer.upload_completion
                future.add_done_callback(lambda _: _tell(saved=time.monotonic()))
                blocked_s = time.monotonic() - began
                _tell(asked=began, blocked_s=blocked_s)
            _iterate(loader, parameters, optimizer, number)
            _tell(iteration=number, began=began, seconds=time.monotonic() - began - blocked_s)
            if future is not None and future.done():
                future.result()
                left -= 1
            if not left:
                break


def _contender(
    name: str, path: Path, optimizer: torch.optim.Optimizer, stack: contextlib.ExitStack
) -> dict[str, Any]:
    """What `async_save` gets for a contender."""
    if name.startswith("stock"):
        options: dict[str, Any] = {"storage_writer": FileSystemWriter(path)}
        if "DefaultStager" in name:
            options["async_stager"] = DefaultStager(StagingOptions(False, False, False, False))
        return options
    writer = stack.enter_context(GDSWriter(path))
    if "guard" in name:
        stack.enter_context(writer.guard(optimizer))
    return {"storage_writer": writer}


def _iterate(
    loader: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    number: int,
) -> None:
    """Look at a batch, compute, and change every parameter."""
    start = number * BATCH_BYTES % loader.numel()
    loader[start : start + BATCH_BYTES].max()
    product = torch.ones(768, 768)
    for _ in range(8):
        product = product @ product * 1e-3
    # The parameters have no gradients, which would double the state: this is for the hooks.
    optimizer.step()
    with torch.no_grad():
        torch._foreach_add_([*parameters], 1.0)


def _tell(**facts: float) -> None:
    """One line for the process that watches."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
