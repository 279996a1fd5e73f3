"""A trainer waits for its save as long as something may still read its tensors, and no longer.

Method: threads that come to the writer, mark milestones, fail, die or never come; short limits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dcp_gds.checkpoint.blocked import Clock, Phase
from dcp_gds.checkpoint.sources import Milestone, Sources, _Limits
from dcp_gds.errors import TransferError, UnsupportedError

LIMITS = _Limits(reach_s=0.2, read_s=0.4)


def made(limits: _Limits | None = None) -> Sources:
    return Sources(frozenset(threading.enumerate()), path="/checkpoint", limits=limits)


def running(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


@pytest.mark.parametrize("milestone", [Milestone.UNGUARDED, Milestone.ALL])
def test_the_wait_ends_at_the_milestone(milestone: Milestone) -> None:
    sources = made()
    go, finish = threading.Event(), threading.Event()

    def save() -> None:
        sources.reach()
        go.wait()
        sources.mark(milestone)
        finish.wait()

    thread = running(save)
    go.set()
    sources.wait(milestone)
    assert thread.is_alive()
    finish.set()
    assert sources.wait_end(10)


def test_what_is_less_than_the_milestone_does_not_end_the_wait() -> None:
    sources = made()
    seen: list[str] = []

    def save() -> None:
        sources.reach()
        sources.mark(Milestone.UNGUARDED)
        seen.append("all")
        sources.mark(Milestone.ALL)

    running(save)
    sources.wait(Milestone.ALL)
    assert seen == ["all"]


def test_a_failure_ends_the_wait() -> None:
    sources = made()
    release = threading.Event()

    def save() -> None:
        sources.reach()
        sources.end()
        release.wait()

    running(save)
    sources.wait(Milestone.ALL)
    release.set()


def test_a_thread_that_dies_ends_the_wait() -> None:
    sources = made()
    running(sources.reach).join()
    sources.wait(Milestone.ALL)
    assert not sources.is_lost
    with pytest.raises(TransferError, match="went on"):
        sources.mark(Milestone.ALL)


def test_a_thread_that_died_before_it_came_ends_the_wait() -> None:
    sources = made()
    sources.wait(Milestone.ALL)
    assert sources.is_lost


def test_a_thread_that_never_comes_is_waited_for_so_long() -> None:
    sources = made(LIMITS)
    release = threading.Event()
    thread = running(release.wait)
    sources.wait(Milestone.ALL)
    assert not sources.is_lost
    with pytest.raises(TransferError, match="/checkpoint"):
        sources.mark(Milestone.UNGUARDED)
    release.set()
    thread.join()


def test_sources_that_are_never_read_are_waited_for_so_long() -> None:
    sources = made(LIMITS)
    release = threading.Event()
    errors: list[TransferError] = []

    def save() -> None:
        sources.reach()
        release.wait()
        with pytest.raises(TransferError, match="void") as caught:
            sources.mark(Milestone.ALL)
        errors.append(caught.value)

    thread = running(save)
    sources.wait(Milestone.ALL)
    assert not sources.wait_end(0)
    release.set()
    thread.join()
    assert errors[0].filename == "/checkpoint"


def test_the_saves_own_thread_waits_for_nothing() -> None:
    sources = made()
    sources.reach()
    assert sources.is_mine
    sources.wait(Milestone.ALL)
    assert sources.wait_end(0)


def test_an_error_that_is_known_before_stays() -> None:
    error = UnsupportedError("it")
    assert Sources(frozenset(), path="", error=error).error is error


def test_waits_are_split_by_what_the_save_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dcp_gds.checkpoint.blocked.time.perf_counter", lambda: now)
    clock = Clock()
    with clock.waiting():
        now = 1.0
        clock.enter(Phase.PLAN)
        now = 3.0
        clock.enter(Phase.COPY)
        now = 7.0
    now = 10.0
    clock.enter(Phase.DRIVE)
    with clock.waiting():
        now = 26.0
        clock.enter(Phase.BACKGROUND)
        now = 27.0
    blocked = clock.blocked()
    assert blocked.seconds == 24.0
    assert (blocked.plan_seconds, blocked.copy_seconds, blocked.drive_seconds) == (2.0, 5.0, 16.0)
