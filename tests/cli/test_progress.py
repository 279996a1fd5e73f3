"""The bar shows what the writer's callback says, and only where somebody can see it.

Method: draw on consoles in memory that are terminals or not.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dcp_gds.cli import demo
from dcp_gds.cli.demo_events import StepDone, Writing
from dcp_gds.cli.progress import SaveProgress
from tests.cli.demosamples import SETTINGS


def test_bar_shows_the_save_at_hand() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with SaveProgress(console, "saving") as bar:
        shown = [bar.shown]
        bar(30, 100)
        bar(100, 100)
        bar.rename("saving again")
        bar(10, 50)
        shown += [bar.shown]
    assert shown == [("saving", 0, None), ("saving again", 10, 50)]


@pytest.mark.parametrize("terminal", [False, True])
def test_bar_is_drawn_on_terminals_only(terminal: bool) -> None:
    output = io.StringIO()
    with SaveProgress(Console(file=output, force_terminal=terminal), "saving") as bar:
        bar(30, 100)
    assert ("saving" in output.getvalue()) == terminal


def test_bar_adds_up_the_ranks_of_a_save() -> None:
    with demo._following(SETTINGS, "run", Console(file=io.StringIO())) as follower:
        follower.follow(StepDone(0, 1, {0: 2.0}))
        follower.follow(Writing(0, 1, 10, 100))
        follower.follow(Writing(1, 1, 20, 50))
        shown = [follower.bar.shown]
        follower.follow(Writing(0, 2, 5, 100))
        shown += [follower.bar.shown]
    title = "run: step 1 of 6, loss 2.00"
    assert shown == [(title, 30, 150), (title, 5, 100)]
