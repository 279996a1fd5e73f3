"""The demo's figures and words follow from what the ranks told, also when losses differ.

Method: events and losses made for the purpose.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dcp_gds.cli import demo, demo_report
from dcp_gds.cli.demo_events import Loaded
from dcp_gds.cli.demo_log import RunLog, compare_losses, figures_of
from dcp_gds.cli.demo_report import KillOutcome, is_equal, print_result
from dcp_gds.cli.main import main
from tests.cli.demosamples import SAVE, log_of, result_with


@pytest.mark.parametrize(
    ("resumed", "equal"),
    [
        (log_of(2, 1, first=5), True),
        (log_of(2 * (1 + 1e-6), 1, first=5), True),
        (log_of(2, 1.001, first=5), False),
        (log_of(2, float("nan"), first=5), False),
        (log_of(2, first=5), False),
    ],
    ids=["equal", "rounded", "different", "nan", "ended-early"],
)
def test_difference_is_seen_said_and_the_status(
    resumed: RunLog,
    equal: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    result = result_with(resumed)
    assert is_equal(result) == equal
    assert any("DIFFERS" in text for text in demo_report._verdict(result)) != equal
    monkeypatch.setattr(demo, "run_demo", lambda *_: result)
    assert main(["demo", "--dir", str(tmp_path)]) == (0 if equal else 1)


def test_comparison_counts_and_measures() -> None:
    comparison = compare_losses(log_of(4, 2, 1), log_of(2, 1.5, first=2))
    assert (comparison.steps, comparison.same_steps) == (2, 1)
    assert comparison.difference_max == 0.5


def test_figures_take_the_slowest_rank_and_leave_out_the_first_save() -> None:
    saves = [
        replace(SAVE, step=1, seconds=50.0, blocked_seconds=9.0),
        replace(SAVE, step=1, rank=1, seconds=50.0),
        replace(SAVE, step=2, seconds=1.0, blocked_seconds=0.3),
        replace(SAVE, step=2, rank=1, seconds=2.0, fallbacks=("why",)),
        replace(SAVE, step=3, seconds=0.5),
        replace(SAVE, step=3, rank=1, seconds=0.5, blocked_seconds=0.2),
        replace(SAVE, step=9, alone=True, seconds=0.25),
        replace(SAVE, step=9, rank=1, alone=True, seconds=0.2),
        replace(SAVE, step=2, writer="stock", seconds=99.0),
    ]
    figures = figures_of(saves, writer="dcp_gds")
    assert (figures.gb_per_s.low, figures.gb_per_s.high, figures.gb_per_s.count) == (1.0, 4.0, 2)
    assert (figures.alone_gb_per_s.median, figures.alone_gb_per_s.count) == (8.0, 1)
    assert (figures.blocked_ms.low, figures.blocked_ms.high) == (200.0, 300.0)
    assert (figures.durable_ms.low, figures.durable_ms.high) == (500.0, 2000.0)
    assert (figures.engines, figures.fallbacks) == (("direct",), ("why",))


def test_fallbacks_and_a_save_that_won_the_race_are_told() -> None:
    result = result_with(log_of(2, 1, first=5))
    for writer in ("dcp_gds", "stock"):
        for alone in (False, True):
            result.uninterrupted.saves.append(
                replace(SAVE, writer=writer, alone=alone, fallbacks=("tmpfs has no direct I/O",))
            )
    result.resumed.loaded = Loaded(0, 4, "buffered", 100, 50, 1.0)
    raced = KillOutcome(
        step=4, resume_from=Path("x-4"), resume_step=4, written_bytes=9, torn_files=0
    )
    for kill, expected in ((result.kill, "2 shard files without"), (raced, "committed just")):
        output = io.StringIO()
        told = replace(result, kill=kill)
        print_result(Console(file=output, width=200), told)
        assert expected in output.getvalue()
        assert "Not by a better engine: tmpfs has no direct I/O" in output.getvalue()
        assert "50% compared with checksums" in output.getvalue()
