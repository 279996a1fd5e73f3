"""Demo events: what the demo's ranks tell the process that started them, one JSON line each."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

__all__ = [
    "Event",
    "EventPipe",
    "Loaded",
    "RankFailed",
    "SaveDone",
    "StepDone",
    "Writing",
    "parse_event",
]

# POSIX promises that a write of up to PIPE_BUF bytes, 4096 on Linux, is not torn: so all ranks and
# their save threads share one pipe without a lock.
LINE_BYTES_MAX = 4096
# Leaves room for escapes: JSON may need six bytes for a character.
TEXT_LENGTH_MAX = 600


@dataclass(frozen=True, slots=True)
class StepDone:
    """An optimizer step was taken; the losses of the rank's half batches, by number of the half."""

    rank: int
    step: int
    losses: dict[int, float]


@dataclass(frozen=True, slots=True)
class Writing:
    """The writer has written so much of the rank's part of a save."""

    rank: int
    step: int
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class SaveDone:
    """A save has been committed.

    Parameters
    ----------
    writer, engine, fallbacks
        Who wrote, by which engine, and why not by a better one.
    bytes
        Payload of the checkpoint, all ranks together.
    seconds
        From the call of `async_save` to the end of the save.
    blocked_seconds
        How long training stood still for it: the call, and the wait for it when the next was due.
    alone
        Whether training had ended, so that nothing went on beside the save.
    """

    rank: int
    step: int
    writer: str
    engine: str
    fallbacks: tuple[str, ...]
    bytes: int
    seconds: float
    blocked_seconds: float
    alone: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint was loaded: payload bytes, seconds of the whole load, bytes with a checksum."""

    rank: int
    step: int
    engine: str
    bytes: int
    verified_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RankFailed:
    """The rank ends because of an error."""

    rank: int
    text: str


Event = StepDone | Writing | SaveDone | Loaded | RankFailed
EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (StepDone, Writing, SaveDone, Loaded, RankFailed)
}


class EventPipe:
    """The writing end of the pipe, in a rank. Sending to a parent that is gone raises."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, event: Event) -> None:
        """Send an event; any thread may."""
        line = json.dumps([type(event).__name__, dataclasses.asdict(event)]).encode() + b"\n"
        assert len(line) <= LINE_BYTES_MAX, "a longer line could be torn"
        os.write(self._fd, line)


def parse_event(line: str) -> Event:
    """The event that a line holds."""
    name, fields = json.loads(line)
    if name == StepDone.__name__:
        fields["losses"] = {int(half): loss for half, loss in fields["losses"].items()}
    if name == SaveDone.__name__:
        fields["fallbacks"] = tuple(fields["fallbacks"])
    return EVENT_TYPES[name](**fields)
