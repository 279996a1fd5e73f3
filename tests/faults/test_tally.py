"""The table of faults says what was counted. Method: a tally of its own, read as text."""

from __future__ import annotations

from tests.faults.tally import Tally


def test_kinds_keep_their_order_and_outcomes_are_summed() -> None:
    tally = Tally()
    tally.add("kill", "old checkpoint")
    tally.add("bit flip", "CorruptCheckpointError", times=1000)
    tally.add("kill", "new checkpoint", times=2)
    assert tally.lines()[2:] == [
        "| kill | 3 | 2 new checkpoint, 1 old checkpoint |",
        "| bit flip | 1,000 | 1,000 CorruptCheckpointError |",
    ]


def test_without_faults_there_is_no_table() -> None:
    assert Tally().lines() == []
