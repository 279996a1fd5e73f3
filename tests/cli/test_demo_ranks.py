"""The demo's ranks end with their run, and what they say or fail to say arrives.

Method: real rank processes that fail, are silent or are interrupted, and events through a pipe.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dcp_gds.cli.demo_events import (
    LINE_BYTES_MAX,
    TEXT_LENGTH_MAX,
    Event,
    EventPipe,
    Loaded,
    RankFailed,
    StepDone,
    Writing,
    parse_event,
)
from dcp_gds.cli.demo_ranks import DemoRanks
from dcp_gds.cli.demo_settings import RankTask
from dcp_gds.errors import DcpGdsError
from tests.cli.demosamples import SAVE, SETTINGS


def test_failing_rank_is_one_error_with_its_reason(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-checkpoint"
    ranks = DemoRanks(SETTINGS, world_size=1, directory=tmp_path, writers=(), resume_from=missing)
    with pytest.raises(DcpGdsError, match=r"rank 0 .* NotCommittedError: .*no-such-check"), ranks:
        list(ranks.events())


def test_ranks_end_with_the_block_whatever_happens(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt_after_a_step() -> None:
        with DemoRanks(SETTINGS, world_size=2, directory=tmp_path, writers=()) as ranks:
            next(ranks.events())
            pids.extend(process.pid for process in ranks._processes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt_after_a_step()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list(tmp_path.iterdir()) == []


def test_rank_that_dies_without_a_word_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with DemoRanks(SETTINGS, world_size=1, directory=tmp_path, writers=()) as ranks:
        assert list(ranks.events()) == []
        with pytest.raises(DcpGdsError, match="ended with code 1"):
            ranks.finish()


def test_silent_ranks_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcp_gds.cli.demo_ranks.SILENCE_SECONDS_MAX", 0.0)
    with (
        DemoRanks(SETTINGS, world_size=1, directory=tmp_path, writers=()) as ranks,
        pytest.raises(DcpGdsError, match="said nothing"),
    ):
        list(ranks.events())


@pytest.mark.parametrize(
    "event",
    [
        StepDone(1, 3, {0: 0.1, 1: 1 / 3}),
        Writing(0, 4, 10, 20),
        replace(SAVE, fallbacks=("one", "two")),
        Loaded(0, 4, "direct", 10, 10, 0.5),
        RankFailed(1, "\N{SNOWMAN}" * TEXT_LENGTH_MAX),
    ],
    ids=lambda event: type(event).__name__,
)
def test_event_comes_through_the_pipe_as_it_was(event: Event) -> None:
    reader, writer = os.pipe()
    EventPipe(writer).send(event)
    os.close(writer)
    text = os.read(reader, 2 * LINE_BYTES_MAX).decode()
    os.close(reader)
    assert parse_event(text) == event
    assert text.endswith("\n")
    assert len(text) <= LINE_BYTES_MAX


def test_task_comes_through_json_as_it_was() -> None:
    task = RankTask(SETTINGS, 1, 2, "/store", "/directory", ("dcp_gds", "stock"), 3, "/from")
    assert RankTask.from_json(task.to_json()) == task
