"""How long do 20,000 small tensors take, and how much of that is not DCP's own planning?

`write_data` and `read_data` are the storage plugin's part: planning, and pickling or unpickling the
metadata, are DCP's. Both are timed by wrapping the method of the writer or reader that DCP gets.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.futures import Future

from bench.contenders import (
    OURS,
    READERS,
    STOCK,
    UNVERIFIED,
    WRITERS,
    State,
    load,
    make_state,
    save,
)
from bench.machine import drop_caches, settle
from bench.measure import Run, interleave, per_round, timed
from bench.options import Options, parse_options, scratch
from bench.output import Column, Comparison, publish

TENSOR_BYTES = 4096
TENSORS = 20_000
WARM_UP_TENSORS = 100
# More threads make stock slower here: they take turns at the interpreter.
NAMES = (OURS, STOCK)
LOADERS = ("GDSReader", UNVERIFIED, "FileSystemReader")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and publish saving, then loading."""
    options = parse_options(
        "Saving and loading of many small tensors",
        arguments,
        rounds=3,
        gib=TENSORS * TENSOR_BYTES / (1 << 30),
    )
    count = max(1, options.length // TENSOR_BYTES)
    state = make_state(length=count * TENSOR_BYTES, tensors=count)
    few = make_state(length=WARM_UP_TENSORS * TENSOR_BYTES, tensors=WARM_UP_TENSORS)
    with scratch(options) as directory:
        if any(name in options.only for name in NAMES) or not options.only:
            _saves(state, few, directory, options)
        if any(name in options.only for name in LOADERS) or not options.only:
            _loads(state, few, directory, options)


def _saves(state: State, few: State, directory: Path, options: Options) -> None:
    """Durable saves."""
    names = options.select(NAMES)
    for number, name in enumerate(names):
        save(few, WRITERS[name](directory / f"warm-{number}"))
    runs = [
        _save_once(state, directory, name=name, turn=turn)
        for turn, name in interleave(names, rounds=options.rounds)
    ]
    publish(
        f"Durable save of {len(state):,} tensors of {TENSOR_BYTES} bytes",
        options,
        runs,
        name="small_tensors_save",
        columns=(
            Column("write_data, s", lambda run: run.facts["write_data_s"]),
            Column("its CPU, s", lambda run: run.facts["write_data_cpu_s"]),
            Column("finish, s", lambda run: run.facts["finish_s"]),
            Column("planning, s", lambda run: run.facts["planning_s"]),
            Column("whole, s", lambda run: run.clocks.seconds),
            Column("whole CPU, s", lambda run: run.clocks.cpu_s),
        ),
        comparisons=_times_faster(runs, "write_data", of=NAMES[0], against=NAMES[1]),
    )


def _loads(state: State, few: State, directory: Path, options: Options) -> None:
    """Cold loads."""
    names = options.select(LOADERS)
    target = {name: tensor.clone().zero_() for name, tensor in state.items()}
    for writer in dict.fromkeys(READERS[name][1] for name in names):
        save(few, WRITERS[writer](directory / "few" / writer))
        save(state, WRITERS[writer](directory / "all" / writer))
    for name in names:
        make_reader, writer = READERS[name]
        load(few, make_reader(directory / "few" / writer))
    runs = [
        _load_once(target, directory / "all", name=name, turn=turn)
        for turn, name in interleave(names, rounds=options.rounds)
    ]
    publish(
        f"Cold load of {len(state):,} tensors of {TENSOR_BYTES} bytes",
        options,
        runs,
        name="small_tensors_load",
        columns=(
            Column("read_data, s", lambda run: run.facts["read_data_s"]),
            Column("its CPU, s", lambda run: run.facts["read_data_cpu_s"]),
            Column("metadata, s", lambda run: run.facts["read_metadata_s"]),
            Column("planning, s", lambda run: run.facts["planning_s"]),
            Column("whole, s", lambda run: run.clocks.seconds),
            Column("whole CPU, s", lambda run: run.clocks.cpu_s),
        ),
        comparisons=_times_faster(runs, "read_data", of=LOADERS[0], against=LOADERS[-1]),
    )


def _save_once(state: State, directory: Path, *, name: str, turn: int) -> Run:
    """One save into a fresh directory, which is removed afterwards."""
    target = directory / "checkpoint"
    quiet = settle(directory)
    writer = WRITERS[name](target)
    spent = _watch(writer, "write_data", "finish")
    clocks = timed(lambda: save(state, writer))
    shutil.rmtree(target)
    facts = _facts(spent, whole_s=clocks.seconds)
    return Run(name, turn, _length_of(state), clocks, quiet, facts)


def _load_once(target: State, directory: Path, *, name: str, turn: int) -> Run:
    """One load with nothing of the checkpoint in the page cache."""
    make_reader, writer = READERS[name]
    drop_caches(directory)
    quiet = settle(directory)
    reader = make_reader(directory / writer)
    spent = _watch(reader, "read_data", "read_metadata")
    clocks = timed(lambda: load(target, reader))
    facts = _facts(spent, whole_s=clocks.seconds)
    return Run(name, turn, _length_of(target), clocks, quiet, facts)


def _watch(plugin: object, *methods: str) -> dict[str, float]:
    """Replace methods of an object by timed ones; returns what each will have taken, by name."""
    spent: dict[str, float] = {}
    for method in methods:
        setattr(plugin, method, _timed_method(getattr(plugin, method), method, spent))
    return spent


def _timed_method(
    call: Callable[..., Any], name: str, spent: dict[str, float]
) -> Callable[..., Any]:
    """`call`, noting its seconds in `spent`; a future counts until it is done, as DCP waits too."""

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        result = call(*args, **kwargs)
        if isinstance(result, Future):
            result.wait()
        spent[f"{name}_s"] = time.perf_counter() - start
        spent[f"{name}_cpu_s"] = time.process_time() - cpu
        return result

    return timed_call


def _facts(spent: dict[str, float], *, whole_s: float) -> dict[str, float]:
    """What was noted, and what is left: DCP's planning, and next to nothing of the plugin's."""
    noted_s = sum(value for name, value in spent.items() if not name.endswith("_cpu_s"))
    return spent | {"planning_s": whole_s - noted_s}


def _length_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def _times_faster(runs: Sequence[Run], method: str, *, of: str, against: str) -> list[Comparison]:
    """How many times longer the other takes in `method`, in its CPU time, and as a whole."""
    values: dict[str, Callable[[Run], float]] = {
        method: lambda run: run.facts[f"{method}_s"],
        f"CPU of {method}": lambda run: run.facts[f"{method}_cpu_s"],
        "whole": lambda run: run.clocks.seconds,
    }
    return [
        Comparison(
            f"{text}: seconds of {against} / {of}",
            [rest[0] / own for own, rest in per_round(runs, value, of=of, against=(against,))],
        )
        for text, value in values.items()
    ]


if __name__ == "__main__":
    main()
