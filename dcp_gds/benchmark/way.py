"""Way: which way the bytes of a contender took, as far as there is proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dcp_gds.hostmem.units import format_bytes

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
    that its engine counted every byte. Who goes through the page cache claims nothing.
    """
    cached = max(each.cached_bytes for each in sightings)
    engines = sorted({name for each in sightings for name in each.engine_bytes})
    counted = min(sum(each.engine_bytes.values()) for each in sightings)
    who = " and ".join(engines) or ("direct" if sightings[0].direct else "page cache")
    left = f"{format_bytes(cached)} cached after" if cached else "nothing cached after"
    if not sightings[0].direct:
        return Way(f"{who}, {left}", proven=not engines or counted >= length)
    if cached > length * CACHED_SHARE_MAX:
        return Way(f"{who} NOT proven: {left}", proven=False)
    if engines and counted < length:
        return Way(f"{who} NOT proven: the engines counted {counted:,} bytes", proven=False)
    return Way(f"{who}, {left}", proven=True)
