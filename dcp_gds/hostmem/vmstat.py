"""Vmstat: what the kernel counts of memory and drives, parsed from the text it prints."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = [
    "moved",
    "only",
    "only_kib",
    "parse_counters",
    "parse_diskstats",
    "parse_kib",
    "parse_pressure",
]

# Every counter is an unsigned long of at most 64 bits: 20 digits. More is garbage, and int() of
# much more of it would take quadratic time.
COUNT = rb"[0-9]{1,20}"
# Patterns, because a loop over the 190 lines of /proc/vmstat takes twice the time.
COUNTERS = re.compile(rb"^(\w+)[ \t]+(" + COUNT + rb")[ \t]*$", re.MULTILINE)
IN_KIB = re.compile(rb"^(\w+(?:\(\w+\))?):[ \t]+(" + COUNT + rb") kB[ \t]*$", re.MULTILINE)
TOTALS = re.compile(rb"^(some|full) [^\n]*\btotal=(" + COUNT + rb")[ \t]*$", re.MULTILINE)
DIGITS_MAX = 20
SECTOR_BYTES = 512
KIB = 1024
# Documentation/admin-guide/iostats.rst: major, minor, name, then 11 fields since 2.6.25, 15 since
# 4.19 (discards), 17 since 5.5. Sectors read and written are the third and the seventh.
DISKSTATS_FIELDS_MIN = 14
# A counter in the last eighth of its 64 bits that comes back small has wrapped.
COUNTER_TOP = 1 << 64
WRAP_MARGIN = COUNTER_TOP >> 3


def only(names: Iterable[str], *, prefixes: Iterable[str] = ()) -> re.Pattern[bytes]:
    """Return a pattern for `parse_counters` that takes some counters: those of these names, and
    those whose names are one of `prefixes` or go on after it with an underscore.
    """
    wanted = [re.escape(name) for name in names]
    wanted += [rf"{re.escape(prefix)}(?:_\w+)?" for prefix in prefixes]
    alternatives = "|".join(wanted).encode("ascii")
    return re.compile(rb"^(" + alternatives + rb")[ \t]+(" + COUNT + rb")[ \t]*$", re.MULTILINE)


def only_kib(names: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern for `parse_kib` that takes these names alone."""
    alternatives = "|".join(re.escape(name) for name in names).encode("ascii")
    return re.compile(rb"^(" + alternatives + rb"):[ \t]+(" + COUNT + rb") kB[ \t]*$", re.MULTILINE)


def parse_counters(text: bytes, pattern: re.Pattern[bytes] = COUNTERS) -> dict[str, int]:
    """Parse lines of a name and a count: /proc/vmstat, memory.stat.

    Fields come and go between kernels, so a field that is missing or is no count is left out, and
    nothing is raised whatever the text.
    """
    return _as_dict(text, pattern, scale=1)


def parse_kib(text: bytes, pattern: re.Pattern[bytes] = IN_KIB) -> dict[str, int]:
    """Parse lines of `Name: 123 kB` into bytes: /proc/meminfo, /proc/PID/status."""
    return _as_dict(text, pattern, scale=KIB)


def parse_pressure(text: bytes) -> dict[str, int]:
    """Parse /proc/pressure/* into microseconds in which "some" or "full" all tasks stalled.

    Documentation/accounting/psi.rst. The averages are left out: the totals give any interval.
    """
    return _as_dict(text, TOTALS, scale=1)


def parse_diskstats(text: bytes) -> dict[str, tuple[int, int]]:
    """Parse /proc/diskstats into bytes read and written so far, by the device's name."""
    drives = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= DISKSTATS_FIELDS_MIN and _is_count(words[5]) and _is_count(words[9]):
            name = words[2].decode("ascii", "replace")
            drives[name] = (int(words[5]) * SECTOR_BYTES, int(words[9]) * SECTOR_BYTES)
    return drives


def moved(*, before: int, after: int) -> int:
    """Return by how much a counter has moved, or at least that much.

    A counter that wrapped has gone on from zero. One that was reset, with its cgroup or its drive,
    has moved by what it shows and by an unknown rest. Some are sums over CPUs that are read one
    after another, and can seem to go back a little: that is no move.
    """
    if after >= before:
        return after - before
    if COUNTER_TOP - WRAP_MARGIN <= before < COUNTER_TOP and after < WRAP_MARGIN:
        return after - before + COUNTER_TOP
    return after if after < before // 2 else 0


def _as_dict(text: bytes, pattern: re.Pattern[bytes], *, scale: int) -> dict[str, int]:
    """The names and numbers that a pattern finds."""
    return {
        name.decode("ascii", "replace"): int(count) * scale for name, count in pattern.findall(text)
    }


def _is_count(word: bytes) -> bool:
    """Whether a word is a number that a counter can have; bytes.isdigit knows ASCII only."""
    return word.isdigit() and len(word) <= DIGITS_MAX
