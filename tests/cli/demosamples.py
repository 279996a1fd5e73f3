"""Samples of what the demo's ranks tell and of results, for the tests of the demo."""

from __future__ import annotations

from pathlib import Path

from dcp_gds.cli.demo_events import SaveDone
from dcp_gds.cli.demo_log import RunLog
from dcp_gds.cli.demo_report import DemoResult, KillOutcome
from dcp_gds.cli.demo_settings import DemoSettings

__all__ = ["SAVE", "SETTINGS", "log_of", "result_with"]

# One save a step, the fourth of which is killed.
SETTINGS = DemoSettings.small(steps=6)
# A save of 2 GB in one second.
SAVE = SaveDone(
    rank=0,
    step=1,
    writer="dcp_gds",
    engine="direct",
    fallbacks=(),
    bytes=2_000_000_000,
    seconds=1.0,
    blocked_seconds=0.1,
    alone=False,
)


def log_of(*losses: float, first: int = 1) -> RunLog:
    """A run with these losses of both halves."""
    steps = enumerate(losses, start=first)
    return RunLog(losses={step: {0: loss, 1: loss + 1} for step, loss in steps})


def result_with(resumed: RunLog) -> DemoResult:
    """A result of six steps of which the last two were resumed."""
    return DemoResult(
        settings=SETTINGS,
        directory=Path("/nowhere"),
        uninterrupted=log_of(6, 5, 4, 3, 2, 1),
        interrupted=log_of(6, 5, 4, 3),
        kill=KillOutcome(
            step=5,
            resume_from=Path("/nowhere/dcp_gds-step-000004"),
            resume_step=4,
            written_bytes=0,
            torn_files=2,
        ),
        resumed=resumed,
        seconds=1,
    )
