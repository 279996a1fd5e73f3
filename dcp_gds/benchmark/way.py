"""Way: which way the bytes of a contender took, as far as there is proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dcp_gds.hostmem.units import format_bytes
from dcp_gds.io.engine import EngineName

__all__ = ["Sighting", "Way", "way_of"]

# What else a checkpoint has: `.metadata` goes through the page cache.
CACHED_SHARE_MAX = 0.01


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen of one run: what the engines say, and what lay in the page cache after it."""

    direct: bool
    engine_bytes: dict[str, int]
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class Way:
    """A sentence, and whether all that was meant to pass the page cache by has been seen to."""

    text: str
    proven: bool


def way_of(sightings: Sequence[Sighting], *, length: int) -> Way:
    """Return the way of a contender's runs of `length` bytes of payload each.

    Proof of direct I/O is that nothing was left in the page cache, and, for who makes a report,
    that engines other than `buffered` counted every byte. Beside the payload, loads read footers
    and envelopes by `buffered`: what was moved aside is named with its bytes. Who goes through the
    page cache claims nothing.
    """
    cached = max(each.cached_bytes for each in sightings)
    left = f"{format_bytes(cached)} cached after" if cached else "nothing cached after"
    who = _who(sightings)
    reported = any(each.engine_bytes for each in sightings)
    direct = sightings[0].direct
    counted = min(_counted(each, direct=direct) for each in sightings)
    if direct and cached > length * CACHED_SHARE_MAX:
        return Way(f"{who} NOT proven: {left}", proven=False)
    if reported and counted < length:
        how = " past the page cache" if direct else ""
        return Way(f"{who} NOT proven: engines counted {counted:,} bytes{how}", proven=False)
    return Way(f"{who}, {left}", proven=True)


def _who(sightings: Sequence[Sighting]) -> str:
    """The engine that moved most, and how much others moved in the run where they moved most."""
    totals: Counter[str] = Counter()
    most: dict[str, int] = {}
    for each in sightings:
        totals.update(each.engine_bytes)
        for name, moved in each.engine_bytes.items():
            most[name] = max(moved, most.get(name, 0))
    if not totals:
        return "direct" if sightings[0].direct else "page cache"
    first, *others = (name for name, _ in totals.most_common())
    aside = [f"{format_bytes(most[name])} by {name}" for name in others]
    return f"{first} ({', '.join(aside)})" if aside else first


def _counted(sighting: Sighting, *, direct: bool) -> int:
    """Bytes that engines have counted: for a direct way, those that can be direct."""
    return sum(
        moved
        for name, moved in sighting.engine_bytes.items()
        if not (direct and name == EngineName.BUFFERED)
    )
