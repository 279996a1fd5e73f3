"""How fast is a durable save, what does it cost, and what does it leave in the page cache?"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.contenders import (
    OURS,
    OURS_UNCHECKED,
    STOCK,
    STOCK_ALL,
    WRITERS,
    State,
    make_state,
    save,
)
from bench.machine import WarmMemory, cached_bytes_of_tree, settle
from bench.measure import Run, interleave, per_round, timed
from bench.options import parse_options, scratch
from bench.output import Column, Comparison, publish

TENSORS = 16
# The first save of each writer pays for imports, threads and envelopes of the whole process.
WARM_UP_BYTES = 16 << 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    question = "Durable save of 16 tensors from warm memory"
    options = parse_options(question, arguments, rounds=7, gib=2.0)
    names = options.select(list(WRITERS))
    state = make_state(length=options.length, tensors=TENSORS)
    length = sum(tensor.nbytes for tensor in state.values())
    with scratch(options) as directory:
        _warm_up(names, directory)
        warm = WarmMemory(length=length)
        runs = [
            _run(state, directory, warm, name=name, turn=turn, length=length)
            for turn, name in interleave(names, rounds=options.rounds)
        ]
    publish(
        question,
        options,
        runs,
        name="save",
        columns=(
            Column("GB/s", lambda run: run.gb_per_s),
            Column("CPU s/GB", lambda run: run.cpu_s_per_gb),
            Column("of the machine", lambda run: run.machine_cpu_s_per_gb),
            Column("cached after, MiB", lambda run: run.facts["cached_bytes"] / (1 << 20)),
        ),
        comparisons=_comparisons(runs),
    )


def _warm_up(names: Sequence[str], directory: Path) -> None:
    """Save a little with each writer."""
    state = make_state(length=WARM_UP_BYTES, tensors=TENSORS)
    for number, name in enumerate(names):
        save(state, WRITERS[name](directory / f"warm-{number}"))


def _run(
    state: State, directory: Path, warm: WarmMemory, *, name: str, turn: int, length: int
) -> Run:
    """One save into a fresh directory, which is removed afterwards."""
    target = directory / "checkpoint"
    quiet = settle(directory)
    with warm.released():
        clocks = timed(lambda: save(state, WRITERS[name](target)))
        cached = cached_bytes_of_tree(target)
        shutil.rmtree(target)
    return Run(name, turn, length, clocks, quiet, {"cached_bytes": cached})


def _comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Speed and CPU of ours against stock at its default, and speed against its best."""
    items = []
    for ours in (OURS, OURS_UNCHECKED):
        speed = per_round(runs, lambda run: run.gb_per_s, of=ours, against=STOCK_ALL)
        default = per_round(runs, lambda run: run.gb_per_s, of=ours, against=(STOCK,))
        cpu = per_round(runs, lambda run: run.cpu_s_per_gb, of=ours, against=(STOCK,))
        items += [
            Comparison(f"{ours}: speed / {STOCK}", [own / other[0] for own, other in default]),
            Comparison(f"{ours}: speed / the best stock", [own / max(rest) for own, rest in speed]),
            Comparison(f"{ours}: CPU / {STOCK}", [own / other[0] for own, other in cpu]),
        ]
    return items


if __name__ == "__main__":
    main()
