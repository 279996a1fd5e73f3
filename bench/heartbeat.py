"""Heartbeat: how long a save of 100,000 items keeps the interpreter from a thread that only ticks.

`stage` and `write_data` are ours; planning, gathering and the pickle of the metadata are DCP's.
Each round saves with Python's garbage collector as it is and without it: a full collection holds
every thread for as long as it takes to visit all objects, whoever has made them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from bench.environment import environment_of
from bench.measure import Spread
from bench.options import Options, parse_options, scratch
from dcp_gds import GDSWriter

QUESTION = "How long is another thread held by a save of 100,000 items? (worst gap, ms)"
ITEMS = 100_000
TICK_S = 0.001
IDLE_S = 2.0


class Watched(GDSWriter):
    """Notes when `stage`, `write_data` and `finish` ran."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.spans: dict[str, tuple[float, float]] = {}

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        staged: dict[str, Any] = self._noted(
            "stage", lambda: super(Watched, self).stage(state_dict)
        )
        return staged

    def write_data(self, plan: Any, planner: Any) -> Any:
        return self._noted("write_data", lambda: super(Watched, self).write_data(plan, planner))

    def finish(self, metadata: Any, results: Any) -> None:
        self._noted("finish", lambda: super(Watched, self).finish(metadata, results))

    def _noted(self, name: str, action: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return action()
        finally:
            self.spans[name] = (began, time.perf_counter())


def main(arguments: Sequence[str] | None = None) -> None:
    """Save several times, and look at the worst gap of each part."""
    options = parse_options(QUESTION, arguments, rounds=5, gib=1.0)
    warnings.simplefilter("ignore")
    state = {f"w{number:06}": torch.ones(4) for number in range(ITEMS)}
    gaps: dict[str, list[float]] = {}
    with scratch(options) as directory:
        for turn in range(options.rounds):
            for collecting, suffix in ((True, ""), (False, ", no collector")):
                with _collector(collecting=collecting):
                    found = _worst_gaps(state, directory / f"{turn}{collecting}")
                for name, gap in found.items():
                    gaps.setdefault(name + suffix, []).append(1e3 * gap)
    _publish(options, gaps)


@contextlib.contextmanager
def _collector(*, collecting: bool) -> Iterator[None]:
    """Run the block with or without automatic collections, both from the same start."""
    gc.collect()
    if not collecting:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _worst_gaps(state: dict[str, Any], path: Path) -> dict[str, float]:
    """The worst gap of a heartbeat while idle, and in each part of one save."""
    beats: list[float] = []
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            beats.append(time.perf_counter())
            time.sleep(TICK_S)

    heart = threading.Thread(target=beat)
    heart.start()
    began = time.perf_counter()
    time.sleep(IDLE_S)
    spans = {"idle": (began, time.perf_counter())}
    writer = Watched(path)
    with writer:
        began = time.perf_counter()
        cast("Future[Any]", async_save(state, storage_writer=writer, no_dist=True)).result()
        spans |= writer.spans
        # From the end of staging to the first byte: planning. The rest of the save is committing.
        spans["DCP: planning"] = (spans["stage"][1], spans["write_data"][0])
    stop.set()
    heart.join()
    return {name: _worst(beats, *span) for name, span in spans.items()}


def _worst(beats: list[float], start: float, end: float) -> float:
    """The longest time without a beat that lies in a span, cut to the span."""
    pairs = itertools.pairwise(beats)
    return max(
        (min(after, end) - max(before, start) for before, after in pairs),
        default=0.0,
    )


def _publish(options: Options, gaps: dict[str, list[float]]) -> None:
    """Print a line for each part and write the JSON."""
    for name, values in gaps.items():
        print(f"{name:28} {Spread.of(values)}")
    document = {
        "question": QUESTION,
        "environment": environment_of(options.directory),
        "gaps_ms": gaps,
    }
    options.json_directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    (options.json_directory / "heartbeat.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
