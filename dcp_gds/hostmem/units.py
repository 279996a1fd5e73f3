"""Units: quantities as people write them, and back."""

from __future__ import annotations

import re

from dcp_gds.errors import ConfigError

__all__ = ["format_bytes", "format_seconds", "parse_bytes", "parse_count", "parse_seconds"]

# IEC 80000-13 names the binary multiples (KiB), SI the decimal ones (kB). Host memory is meant
# binary when it is written without a B (`512G`, as in kubernetes' and the kernel's own `G`), drives
# are sold in decimal ones: what ends in B is decimal, what ends in iB or has no B is binary.
POWERS = {letter: power for power, letter in enumerate("kmgtpe", start=1)}
QUANTITY = re.compile(
    r"(?P<number>[0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?|\.[0-9]+)\s*"
    r"(?P<prefix>[kmgtpe]?)(?P<kind>i?b|i|bytes?)?(?P<rate>/s|ps|/sec|\s+per\s+second)?",
    re.IGNORECASE,
)
# A rate without a unit of time is one a second.
COUNT = re.compile(
    r"(?P<number>[0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?|\.[0-9]+)\s*(?P<suffix>[kmbt]?)",
    re.IGNORECASE,
)
COUNT_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
DURATION_PART = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?|\.[0-9]+)\s*"
    r"(?P<unit>ms|milliseconds?|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w|)\s*",
    re.IGNORECASE,
)
DURATIONS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# What fits a signed 64-bit count of bytes.
BYTES_MAX = 2.0**63
STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
STEP = 1024
SECONDS_MAX = 1e12
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def parse_bytes(text: str, *, name: str) -> int:
    """Return a number of bytes, or of bytes a second, from `512GiB`, `512 G`, `6.5GB/s`, `1e9`.

    `GiB` and a bare `G` are 2^30, `GB` is 10^9; case does not matter, but `Gb` is refused: that
    is how bits are written.

    Raises
    ------
    ConfigError
        With `name`, if it is no such quantity, or negative, or more than 2^63.
    """
    match = QUANTITY.fullmatch(text.strip())
    kind = (match["kind"] or "") if match else ""
    if match is None or (kind == "b" and match["prefix"].isupper()):
        raise ConfigError(f"{name} is {text!r}; expected bytes such as 512GiB, 512GB, 6.5GB/s")
    number = float(match["number"].replace(",", "").replace("_", ""))
    base = 1000.0 if kind.lower() in {"b", "byte", "bytes"} else 1024.0
    value: float = number * base ** POWERS.get(match["prefix"].lower(), 0)
    if not value < BYTES_MAX:
        raise ConfigError(f"{name} is {text!r}; expected less than 2^63 bytes")
    return round(value)


def parse_count(text: str, *, name: str) -> int:
    """Return a whole number of things from `70e9`, `70B`, `1_000`, `1.5T`.

    Raises
    ------
    ConfigError
        With `name`, if it is none, or negative, or more than 2^63.
    """
    match = COUNT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{name} is {text!r}; expected a number such as 70e9 or 70B")
    number = float(match["number"].replace(",", "").replace("_", ""))
    value = number * COUNT_FACTORS[match["suffix"].lower()]
    if not value < BYTES_MAX:
        raise ConfigError(f"{name} is {text!r}; expected less than 2^63")
    return round(value)


def parse_seconds(text: str, *, name: str) -> float:
    """Return seconds from `90`, `90s`, `20min`, `1h30m`, `3 days`.

    Raises
    ------
    ConfigError
        With `name`, if it is no duration.
    """
    wrong = ConfigError(f"{name} is {text!r}; expected a duration such as 90s, 20min or 1h30m")
    rest, total, parts = text.strip(), 0.0, 0
    while rest:
        match = DURATION_PART.match(rest)
        if match is None or (parts and not match["unit"]):
            raise wrong
        total += float(match["number"]) * _seconds_in(match["unit"].lower())
        rest, parts = rest[match.end() :], parts + 1
    if not parts or not total < SECONDS_MAX:
        raise wrong
    return total


def format_bytes(value: float) -> str:
    """Return bytes in the largest binary unit that leaves at least one."""
    sign, size = ("-" if value < 0 else ""), abs(float(value))
    step = 0
    while size >= STEP and step + 1 < len(STEPS):
        size /= STEP
        step += 1
    digits = 0 if step == 0 else 1
    return f"{sign}{size:.{digits}f} {STEPS[step]}"


def format_seconds(value: float) -> str:
    """Return a duration in the unit that suits it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 2 * MINUTE_S:
        return f"{value:.1f} s"
    if value < 2 * HOUR_S:
        return f"{value / MINUTE_S:.0f} minutes"
    if value < 2 * DAY_S:
        return f"{value / HOUR_S:.1f} hours"
    return f"{value / DAY_S:.1f} days"


def _seconds_in(unit: str) -> float:
    """A unit of time in seconds; none is seconds."""
    if unit.startswith("ms") or unit.startswith("mill"):
        return DURATIONS["ms"]
    return DURATIONS[unit[:1] or "s"]
