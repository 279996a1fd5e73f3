"""Contenders take turns, and are held against the ceiling of the same round.

Method: contenders whose clocks are made up, on a real directory; the values are worked out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dcp_gds.benchmark import machine
from dcp_gds.benchmark.comparison import Comparison, compare_readers, compare_writers
from dcp_gds.benchmark.contender import Act, Contender
from dcp_gds.benchmark.machine import cached_bytes_of_tree
from dcp_gds.benchmark.measure import Clocks, Run, Spread, interleave, per_round
from dcp_gds.benchmark.result import rows_of

GB = 10**9
# Seconds for 1 GB, round by round.
SECONDS = {"slow tool": (2.0, 0.4, 3.0), "tool": (1.0, 0.5, 0.8), "GDSWriter": (1.25, 2.0, 0.5)}
TOOLS = ["slow tool", "tool"]


@pytest.fixture(autouse=True)
def _at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no drive, hold no memory, and leave the machine's caches alone."""
    monkeypatch.setattr(machine, "SETTLE_S_MIN", 0.0)
    monkeypatch.setattr(machine, "WARM_BYTES_BESIDE", 1 << 20)
    monkeypatch.setattr(machine, "WARM_SHARE_MAX", 0.0001)
    monkeypatch.setattr(machine, "DROP_CACHES", tmp_path / "caches")


def contenders(places: list[tuple[str, Path]] | None = None) -> list[Contender]:
    """Each takes the next of its seconds, and half of them of CPU time."""

    def make(name: str, left: Iterator[float]) -> Contender:
        def act(place: Path) -> Act:
            if places is not None:
                assert list(place.iterdir()) == []
                places.append((name, place))
            seconds = next(left)
            act = Act(Clocks(seconds, seconds / 2, None), {})
            return replace(act, blocked_s=0.1, peak_bytes=7) if name == "GDSWriter" else act

        return Contender(name, act, direct=True)

    return [make(name, iter(seconds)) for name, seconds in SECONDS.items()]


def compare(directory: Path, places: list[tuple[str, Path]] | None = None) -> Comparison:
    return compare_writers(
        contenders(places),
        tools=TOOLS,
        rounds=3,
        length=GB,
        directory=directory,
        say=lambda _: None,
    )


def test_the_ceiling_is_the_tool_with_the_greater_median(tmp_path: Path) -> None:
    # Medians in GB/s: 1/2 and 1/0.8. The best single run is the slow tool's: 1/0.4.
    assert compare(tmp_path).ceiling == "tool"


def test_shares_are_medians_of_the_ratios_of_each_round(tmp_path: Path) -> None:
    compared = compare(tmp_path)
    # 1/1.25, 0.5/2, 0.8/0.5. The ratio of the medians, 0.8 / 1.25 = 0.64, is none of them.
    assert compared.shares["GDSWriter"] == Spread(0.8, 0.25, 1.6)
    assert compared.shares["tool"] == Spread(1.0, 1.0, 1.0)
    # 1/2, 0.5/0.4, 0.8/3.
    slow = compared.shares["slow tool"]
    assert (slow.median, slow.high) == (0.5, 1.25)
    assert slow.low == pytest.approx(0.8 / 3)


def test_rows_have_the_figures_of_each(tmp_path: Path) -> None:
    rows = {row.contender: row for row in rows_of(compare(tmp_path))}
    assert list(rows) == list(SECONDS)
    ours = rows["GDSWriter"]
    assert ours.gb_per_s == Spread(0.8, 0.5, 2.0)
    assert ours.cpu_s_per_gb == Spread(0.625, 0.25, 1.0)
    assert ours.share.median == 0.8
    assert ours.blocked_s == Spread(0.1, 0.1, 0.1)
    assert ours.peak_bytes == Spread(7, 7, 7)
    assert ours.cached_bytes == Spread(0, 0, 0)
    assert rows["tool"].blocked_s is rows["tool"].peak_bytes is None


def test_each_begins_a_round_in_turn_in_a_fresh_directory(tmp_path: Path) -> None:
    places: list[tuple[str, Path]] = []
    compare(tmp_path, places)
    names = list(SECONDS)
    assert [name for name, _ in places] == [
        *(names[0], names[1], names[2]),
        *(names[1], names[2], names[0]),
        *(names[2], names[0], names[1]),
    ]
    assert list(tmp_path.iterdir()) == []


def test_readers_are_checked_after_each_run_and_their_caches_dropped(tmp_path: Path) -> None:
    checked: list[str] = []
    sources = {}
    for name in SECONDS:
        sources[name] = tmp_path / name
        sources[name].mkdir()
        (sources[name] / "file").write_bytes(b"x" * 10_000)

    def reading(contender: Contender) -> Contender:
        def act(place: Path) -> Act:
            assert cached_bytes_of_tree(place) == 0
            assert len((place / "file").read_bytes()) == 10_000
            return contender.act(place)

        return replace(contender, act=act)

    compared = compare_readers(
        [reading(each) for each in contenders()],
        sources,
        checked.append,
        tools=TOOLS,
        rounds=3,
        length=GB,
        say=lambda _: None,
    )
    assert sorted(checked) == sorted([*SECONDS] * 3)
    assert compared.shares["GDSWriter"].median == 0.8
    assert {run.facts["cached_bytes"] for run in compared.runs} == {12_288.0}
    assert (tmp_path / "caches").read_text() == "3\n"


def run(name: str, turn: int, seconds: float) -> Run:
    return Run(name, turn, GB, Clocks(seconds, 0.5, 2.0))


def test_rounds_in_which_one_is_missing_are_left_out() -> None:
    runs = [run("a", 0, 1.0), run("b", 0, 2.0), run("a", 1, 1.0), run("b", 2, 4.0), run("a", 2, 2)]
    pairs = per_round(runs, lambda each: each.gb_per_s, of="b", against=("a", "never"))
    assert pairs == [(0.5, [1.0]), (0.25, [0.5])]


def test_rates_of_a_run() -> None:
    one = Run("a", 0, 2 * GB, Clocks(0.5, 1.0, 3.0))
    assert (one.gb_per_s, one.cpu_s_per_gb, one.machine_cpu_s_per_gb) == (4.0, 0.5, 1.5)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((1.0, 3.0, 2.0), "2.00 (1.00-3.00)"),
        ((1.0, 2.0), "1.50 (1.00-2.00)"),
        ((0.501, 0.502), "0.50"),
        ((150.2, 99.9, 170), "150 (100-170)"),
    ],
)
def test_a_spread_as_text(values: tuple[float, ...], text: str) -> None:
    assert str(Spread.of(values)) == text


def test_turns_begin_anew_when_all_have_begun_one() -> None:
    assert list(interleave("ab", rounds=3)) == [
        *((0, "a"), (0, "b")),
        *((1, "b"), (1, "a")),
        *((2, "a"), (2, "b")),
    ]
