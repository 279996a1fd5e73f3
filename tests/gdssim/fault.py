"""Fault: what shall go wrong in which call of the simulated libraries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["EVERY", "Action", "Fault"]

# More calls than any test makes: the fault stays until `Simulator.reset`.
EVERY = 1_000_000_000


class Action(IntEnum):
    """What happens at the call; numbers as in calls.c."""

    RETURN = 0
    """It returns `result`, with `error` as errno."""
    DELAY = 1
    """It waits `delay_us`, and goes on."""
    HOLD = 2
    """It waits for `Simulator.release`, and goes on; where nobody releases it, it hangs."""
    ABORT = 3
    """The process ends with SIGABRT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Parameters
    ----------
    function
        Name of the call, as its library exports it.
    skip, count
        So many calls pass unharmed, and then so many are hit.
    result
        A CUresult, or a CUfileOpError. For cuFileRead and cuFileWrite: a negative number is
        returned, with `error` as errno; any other is a short transfer, which really moves only so
        many bytes.
    """

    function: str
    skip: int = 0
    count: int = 1
    result: int = -1
    error: int = 0
    delay_us: int = 0
    action: Action = Action.RETURN

    def as_text(self) -> str:
        """Return the form in which a process takes faults from its environment."""
        numbers = (self.skip, self.count, self.result, self.error, self.delay_us, self.action.value)
        return f"{self.function},{','.join(map(str, numbers))};"
