"""Blocked: how long an asynchronous save holds its trainer, beside what it cannot do without.

A state within the ceiling has to be copied once; of a larger one, the rest has to reach the drive.
Both are measured in each round: a warm copy of the state, and a synchronous save of it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from bench.contenders import State, make_state
from bench.environment import environment_of
from bench.machine import settle
from bench.measure import Spread, interleave, timed
from bench.options import parse_options, scratch
from dcp_gds import GDSWriter

QUESTION = "How long does an asynchronous save block, by its ceiling?"
TENSORS = 16
# Ceilings as shares of the state.
CEILINGS = (0.0, 0.25, 0.5, 1.0)
# What blocking may take: of a warm copy, and of the time that the drive needs for the rest.
COPY_FACTOR_MAX = 1.3
DRIVE_FACTOR_MAX = 1.2


def main(arguments: Sequence[str] | None = None) -> None:
    """Save under each ceiling in turn; print and write what blocked against the bound."""
    options = parse_options(QUESTION, arguments, rounds=5, gib=0.5)
    warnings.simplefilter("ignore")
    found: list[dict[str, float]] = []
    with scratch(options) as directory:
        state = make_state(length=options.length, tensors=TENSORS)
        copy = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        _copy(state, copy)  # a copy into memory that was never touched takes ten times as long
        for turn, share in interleave(CEILINGS, rounds=options.rounds):
            found.append(_one(state, copy, directory / f"{turn}-{share}", share=share))
    for share in CEILINGS:
        rows = [row for row in found if row["ceiling_share"] == share]
        times = Spread.of(row["blocked_s"] / row["bound_s"] for row in rows)
        blocked = Spread.of(row["blocked_s"] for row in rows)
        print(f"ceiling {share:4.0%} of the state: blocked {blocked} s, {times} of the bound")
    document = {
        "question": QUESTION,
        "environment": environment_of(options.directory),
        "state_bytes": options.length,
        "rounds": found,
    }
    options.json_directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    (options.json_directory / "async_blocked.json").write_text(text, encoding="utf-8")


def _one(state: State, copy: State, path: Path, *, share: float) -> dict[str, float]:
    """One save under a ceiling, and right before it the copy and the drive."""
    length = sum(tensor.nbytes for tensor in state.values())
    ceiling = int(length * share)
    copy_s = timed(lambda: _copy(state, copy)).seconds
    settle(path.parent)
    with GDSWriter(path, host_bytes_max=ceiling, overwrite=True) as writer:
        save(state, storage_writer=writer, no_dist=True)  # the first one makes the slots
        settle(path.parent)
        drive_s = timed(lambda: save(state, storage_writer=writer, no_dist=True)).seconds
        _async(state, writer)  # touches the copies' memory, as the first save of a run does
        settle(path.parent)
        _async(state, writer)
        report = writer.report
    assert report is not None, "the save has ended"
    bound_s = COPY_FACTOR_MAX * copy_s + DRIVE_FACTOR_MAX * drive_s * (1 - share)
    return {
        "ceiling_share": share,
        "copy_s": copy_s,
        "drive_s": drive_s,
        "blocked_s": report.blocked_seconds,
        "durable_s": report.durable_seconds,
        "bound_s": bound_s,
    }


def _async(state: State, writer: GDSWriter) -> None:
    """One asynchronous save, to its end."""
    cast("Future[Any]", async_save(state, storage_writer=writer, no_dist=True)).result()


def _copy(state: State, copy: State) -> None:
    """Copy every tensor."""
    for name, tensor in state.items():
        copy[name].copy_(tensor)


if __name__ == "__main__":
    main()
