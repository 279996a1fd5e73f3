"""How fast is a cold load into tensors that exist, and what does it cost?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from bench.contenders import READERS, UNVERIFIED, WRITERS, State, load, make_state, save
from bench.machine import WarmMemory, cached_bytes_of_tree, drop_caches, settle
from bench.measure import Run, interleave, per_round, timed
from bench.options import parse_options, scratch
from bench.output import Column, Comparison, publish

TENSORS = 16
WARM_UP_BYTES = 16 << 20
OURS, STOCK = "GDSReader", "FileSystemReader"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    question = "Cold load of 16 tensors into existing ones"
    options = parse_options(question, arguments, rounds=5, gib=2.0)
    names = options.select(list(READERS))
    state = make_state(length=options.length, tensors=TENSORS)
    length = sum(tensor.nbytes for tensor in state.values())
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    with scratch(options) as directory:
        _warm_up(names, directory)
        for writer in _writers_of(names):
            save(state, WRITERS[writer](_checkpoint_of(directory, writer)))
        drop_caches(directory)
        warm = WarmMemory(length=length)
        runs = []
        for turn, name in interleave(names, rounds=options.rounds):
            runs.append(_run(target, directory, warm, name=name, turn=turn, length=length))
            _check(target, state, name)
    publish(
        question,
        options,
        runs,
        name="load",
        columns=(
            Column("GB/s", lambda run: run.gb_per_s),
            Column("CPU s/GB", lambda run: run.cpu_s_per_gb),
            Column("of the machine", lambda run: run.machine_cpu_s_per_gb),
            Column("cached after, MiB", lambda run: run.facts["cached_bytes"] / (1 << 20)),
        ),
        comparisons=_comparisons(runs),
    )


def _writers_of(names: Sequence[str]) -> list[str]:
    """The writers whose checkpoints the readers read, each once."""
    return list(dict.fromkeys(READERS[name][1] for name in names))


def _checkpoint_of(directory: Path, writer: str) -> Path:
    return directory / f"by-{list(WRITERS).index(writer)}"


def _warm_up(names: Sequence[str], directory: Path) -> None:
    """Load a little with each reader."""
    state = make_state(length=WARM_UP_BYTES, tensors=TENSORS)
    small = directory / "warm"
    for writer in _writers_of(names):
        save(state, WRITERS[writer](_checkpoint_of(small, writer)))
    for name in names:
        make_reader, writer = READERS[name]
        load(state, make_reader(_checkpoint_of(small, writer)))


def _run(
    target: State, directory: Path, warm: WarmMemory, *, name: str, turn: int, length: int
) -> Run:
    """One load with nothing of the checkpoint in the page cache."""
    make_reader, writer = READERS[name]
    checkpoint = _checkpoint_of(directory, writer)
    for tensor in target.values():
        tensor.zero_()
    quiet = settle(directory)
    with warm.released():
        clocks = timed(lambda: load(target, make_reader(checkpoint)))
        cached = cached_bytes_of_tree(checkpoint)
        drop_caches(directory)
    return Run(name, turn, length, clocks, quiet, {"cached_bytes": cached})


def _check(target: State, state: State, name: str) -> None:
    """A load that is fast and wrong is no result."""
    for key, tensor in state.items():
        if not torch.equal(target[key], tensor):
            raise SystemExit(f"{name} loaded {key} wrongly")


def _comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Speed and CPU of ours against stock."""
    items = []
    for ours in (OURS, UNVERIFIED):
        speed = per_round(runs, lambda run: run.gb_per_s, of=ours, against=(STOCK,))
        cpu = per_round(runs, lambda run: run.cpu_s_per_gb, of=ours, against=(STOCK,))
        items += [
            Comparison(f"{ours}: speed / {STOCK}", [own / other[0] for own, other in speed]),
            Comparison(f"{ours}: CPU / {STOCK}", [own / other[0] for own, other in cpu]),
        ]
    return items


if __name__ == "__main__":
    main()
