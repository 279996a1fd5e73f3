"""Sources: the tensors that an asynchronous save reads, how far it is, and who waits for it."""

from __future__ import annotations

import enum
import errno
import threading
import time
from dataclasses import dataclass

from dcp_gds.checkpoint.blocked import Blocked, Clock, Phase
from dcp_gds.errors import DcpGdsError, TransferError

__all__ = ["Milestone", "Sources", "new_threads_since"]

# How soon a dead save thread is noticed. Everything else is told at once.
POLL_S = 0.05
# From `async_save` to the writer there are a few calls, or the start of a process that imports
# torch: seconds.
REACH_S_MAX = 120.0
# Planning waits for the slowest rank and the sources for the drive. gloo's own limit for a
# collective is half an hour; a save that takes longer has failed anyway.
READ_S_MAX = 1800.0


class Milestone(enum.IntEnum):
    """How far the save thread has got with the sources."""

    NOTHING = 0
    UNGUARDED = 1
    """What changes outside an optimizer's step has been read."""
    ALL = 2
    """Every source byte has been read: copied, or written."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """The longest waits in seconds; tests have shorter ones."""

    reach_s: float = REACH_S_MAX
    read_s: float = READ_S_MAX


class Sources:
    """What the trainer's thread and the save's thread tell each other about one save.

    The trainer waits until a milestone is reached, or it is certain that nothing will be read any
    more: the save has failed, its thread is dead, or it never came to the writer. It never raises:
    the save's future says what went wrong. If it has waited too long, the trainer goes on, and the
    save fails instead of storing what changed meanwhile.

    Parameters
    ----------
    before
        The threads that lived before the save's own was started.
    guarded
        Addresses of storages that change in a guarded optimizer's step only.
    live
        Addresses of storages that were not copied.
    error
        Why the state cannot be saved, if that is known already.
    """

    def __init__(
        self,
        before: frozenset[threading.Thread],
        *,
        path: str,
        guarded: frozenset[int] = frozenset(),
        live: frozenset[int] = frozenset(),
        copied_bytes: int = 0,
        error: DcpGdsError | None = None,
        clock: Clock | None = None,
        limits: _Limits | None = None,
    ) -> None:
        self.guarded = guarded
        self.live = live
        self.copied_bytes = copied_bytes
        self.error = error
        self._before = before
        self._path = path
        self._clock = clock or Clock()
        self._limits = limits or _Limits()
        self._changed = threading.Condition()
        self._milestone = Milestone.NOTHING
        self._thread: threading.Thread | None = None
        self._over = False
        self._abandoned = ""
        self._is_late = False

    def reach(self) -> None:
        """The save's thread has come to the writer."""
        with self._changed:
            self._thread = threading.current_thread()
            self._changed.notify_all()

    def enter(self, phase: Phase) -> None:
        """The save's thread begins something that the trainer may have to wait for."""
        self._clock.enter(phase)

    def mark(self, milestone: Milestone) -> None:
        """The save's thread has read what belongs to a milestone.

        Raises
        ------
        TransferError
            If the trainer went on before: what was read may be a mixture.
        """
        with self._changed:
            if self._abandoned:
                raise TransferError(errno.ETIMEDOUT, self._abandoned, self._path)
            self._milestone = max(self._milestone, milestone)
            if milestone is Milestone.ALL:
                self._clock.enter(Phase.BACKGROUND)
            self._changed.notify_all()

    def end(self) -> None:
        """The save has failed or is done: nothing will be read any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait(self, milestone: Milestone) -> None:
        """Wait on the trainer's thread until a milestone is reached, or never will be."""
        if self.is_mine:
            return
        with self._clock.waiting(), self._changed:
            began = time.monotonic()
            while self._milestone < milestone and not self._over:
                waited = time.monotonic() - began
                if not self._is_coming(waited):
                    self._is_late = waited > self._limits.reach_s
                    self._abandon("the trainer went on, as nothing seemed to read its tensors")
                elif waited > self._limits.read_s:
                    self._abandon(
                        f"the save had not read its tensors {self._limits.read_s:.0f} s after it"
                        " began, so the trainer went on and the save is void: find out what the"
                        " drive or another rank waits for"
                    )
                else:
                    self._changed.wait(POLL_S)

    def wait_end(self, limit_s: float) -> bool:
        """Wait until the save's thread has ended; False if it has not after `limit_s`."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(limit_s)
        return not thread.is_alive()

    @property
    def is_lost(self) -> bool:
        """Whether the save ended before it came to the writer, and never will."""
        return self._over and self._thread is None and not self._is_late

    @property
    def is_mine(self) -> bool:
        """Whether the caller is the save's own thread."""
        return self._thread is threading.current_thread()

    def blocked(self) -> Blocked:
        """How long the trainer has waited so far, and for what."""
        return self._clock.blocked()

    @property
    def age_seconds(self) -> float:
        """Seconds since the save was asked for."""
        return self._clock.age_seconds

    def _is_coming(self, waited: float) -> bool:
        """Whether something lives that may read the sources."""
        if self._thread is not None:
            return self._thread.is_alive()
        # `async_save` starts the save's thread before it waits, so one that is not there is dead.
        return waited <= self._limits.reach_s and bool(new_threads_since(self._before))

    def _abandon(self, reason: str) -> None:
        """Nothing that is read from now on may be stored."""
        self._abandoned = reason
        self._over = True


def new_threads_since(before: frozenset[threading.Thread]) -> frozenset[threading.Thread]:
    """The threads that live now and were not there before, but for the caller's."""
    return frozenset(threading.enumerate()) - before - {threading.current_thread()}
