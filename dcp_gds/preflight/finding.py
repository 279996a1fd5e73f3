"""Finding: a result of the preflight check, and the verdict on a path that findings lead to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Route", "Status", "Verdict"]


class Status(StrEnum):
    """How grave a finding is, the gravest first."""

    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    OK = "ok"


class Route(StrEnum):
    """The way that bytes can take to a path, the best first."""

    GDS = "GDS"
    STAGED = "staged direct"
    DIRECT = "direct (host only)"
    BUFFERED = "buffered"
    NONE = "nothing can be written"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw.

    Parameters
    ----------
    check
        Its name, stable from version to version.
    status
        "skip" where nothing could be known; `observed` then says why.
    observed, expected
        What is there, and what should be; `expected` is empty where nothing is wrong.
    remedy
        What to do, as a command or a setting where there is one.
    source
        The file or system call that was asked.
    """

    check: str
    status: Status
    observed: str
    expected: str = ""
    remedy: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best way that was found to a path, and the reason why it is not a better one.

    `tried`: bytes of the probe have gone this way. Otherwise the host's files suggest it.
    """

    path: str
    route: Route
    tried: bool
    reason: str
    findings: tuple[Finding, ...]
