"""Comparison: rounds in which contenders take turns, from the same state of machine and drive."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.benchmark.contender import Act, Contender
from dcp_gds.benchmark.machine import WarmMemory, cached_bytes_of_tree, drop_caches, settle
from dcp_gds.benchmark.measure import Run, Spread, interleave, per_round
from dcp_gds.benchmark.way import Sighting, Way, way_of

__all__ = ["Comparison", "compare_readers", "compare_writers"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of it.

    Parameters
    ----------
    runs
        Of every contender in every round.
    ways
        By contender.
    ceiling
        The contender among the tools with the greater median; what the drive can do.
    shares
        By contender: its speed by the ceiling's, round by round.
    """

    runs: tuple[Run, ...]
    ways: Mapping[str, Way]
    ceiling: str
    shares: Mapping[str, Spread]


def compare_writers(
    contenders: Sequence[Contender],
    *,
    tools: Sequence[str],
    rounds: int,
    length: int,
    directory: Path,
    say: Say,
) -> Comparison:
    """Let each fill a fresh directory once a round."""
    warm = WarmMemory(length=length)

    def once(contender: Contender) -> tuple[Act, bool, int]:
        place = directory / "round"
        place.mkdir()
        quiet = settle(directory)
        with warm.released():
            act = contender.act(place)
            cached = cached_bytes_of_tree(place)
            shutil.rmtree(place)
        return act, quiet, cached

    return _compare(contenders, once, tools=tools, rounds=rounds, length=length, say=say)


def compare_readers(
    contenders: Sequence[Contender],
    sources: Mapping[str, Path],
    check: Callable[[str], None],
    *,
    tools: Sequence[str],
    rounds: int,
    length: int,
    say: Say,
) -> Comparison:
    """Let each read its source once a round, with nothing of it in the page cache.

    Parameters
    ----------
    check
        Called with the contender's name after each of its runs; raises if what was read is wrong.
    """
    warm = WarmMemory(length=length)

    def once(contender: Contender) -> tuple[Act, bool, int]:
        source = sources[contender.name]
        drop_caches(source)
        with warm.released():
            act = contender.act(source)
            cached = cached_bytes_of_tree(source)
            drop_caches(source)
        check(contender.name)
        return act, True, cached

    # Reads leave nothing behind that the next one would have to wait for.
    settle(next(iter(sources.values())))
    return _compare(contenders, once, tools=tools, rounds=rounds, length=length, say=say)


def _compare(
    contenders: Sequence[Contender],
    once: Callable[[Contender], tuple[Act, bool, int]],
    *,
    tools: Sequence[str],
    rounds: int,
    length: int,
    say: Say,
) -> Comparison:
    """The rounds, and their sums."""
    runs: list[Run] = []
    sightings: dict[str, list[Sighting]] = {each.name: [] for each in contenders}
    for turn, contender in interleave(contenders, rounds=rounds):
        say(f"round {turn + 1} of {rounds}: {contender.name}")
        act, quiet, cached = once(contender)
        facts = {"cached_bytes": float(cached)}
        if act.blocked_s is not None:
            facts["blocked_s"] = act.blocked_s
        if act.peak_bytes is not None:
            facts["peak_bytes"] = float(act.peak_bytes)
        runs.append(Run(contender.name, turn, length, act.clocks, quiet, facts))
        sightings[contender.name].append(Sighting(contender.direct, act.engine_bytes, cached))
    ceiling = max(tools, key=lambda name: _median_gb_per_s(runs, name))
    shares = {
        each.name: Spread.of(own / rest[0] for own, rest in pairs)
        for each in contenders
        if (pairs := per_round(runs, lambda run: run.gb_per_s, of=each.name, against=(ceiling,)))
    }
    ways = {name: way_of(seen, length=length) for name, seen in sightings.items()}
    return Comparison(tuple(runs), ways, ceiling, shares)


def _median_gb_per_s(runs: Sequence[Run], name: str) -> float:
    return Spread.of(run.gb_per_s for run in runs if run.contender == name).median
