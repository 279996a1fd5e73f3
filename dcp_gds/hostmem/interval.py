"""Interval: how often to save, by how often a job fails."""

from __future__ import annotations

import math

__all__ = ["daly_interval_s", "lost_share", "young_interval_s"]


def young_interval_s(blocked_s: float, *, mtbf_s: float) -> float:
    """Return sqrt(2 d M), for saves that cost d and failures that are M apart.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of
    the ACM 17 (9), 1974. Good while a save is short against the time between failures.
    """
    return math.sqrt(2 * blocked_s * mtbf_s)


def daly_interval_s(blocked_s: float, *, mtbf_s: float) -> float:
    """Return the interval from the end of a save to the begin of the next, of a higher order.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (3), 2006: sqrt(2 d M) (1 + x/3 + x^2/9) - d with x =
    sqrt(d / 2 M), and M itself where d is 2 M or more.

    60 s and 12 hours: Young 2276.8 s, Daly 2237.0 s.
    """
    if blocked_s >= 2 * mtbf_s:
        return mtbf_s
    x = math.sqrt(blocked_s / (2 * mtbf_s))
    return young_interval_s(blocked_s, mtbf_s=mtbf_s) * (1 + x / 3 + x * x / 9) - blocked_s


def lost_share(interval_s: float, *, blocked_s: float, mtbf_s: float) -> float:
    """Return the share of the time that saves block and failures undo, to the first order.

    Each interval is blocked for d, and each failure undoes half an interval on average (Young).
    Restarting is not in it: it costs the same however often one saves.
    """
    return blocked_s / (interval_s + blocked_s) + interval_s / (2 * mtbf_s)
