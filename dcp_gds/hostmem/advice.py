"""Advice: what to change, with the host's own numbers in it."""

from __future__ import annotations

from dcp_gds.hostmem.tally import Change
from dcp_gds.hostmem.units import format_bytes, format_seconds
from dcp_gds.hostmem.verdict import Verdict

__all__ = ["advise"]

# Staging memory that matters to a host: less than a hundredth of it is not worth halving.
STAGING_SHARE_NOTABLE = 0.01
# Direct I/O leaves nothing in the page cache, so what piles up is another's.
BUFFERED = "buffered"


def advise(
    verdict: Verdict,
    change: Change,
    *,
    staging_bytes: int | None = None,
    interval_s: float | None = None,
    engine: str | None = None,
) -> tuple[str, ...]:
    """Return what to do, a sentence each, the most useful first; nothing when all is calm.

    Parameters
    ----------
    staging_bytes
        Host memory that the saves use at most, if saves were watched.
    interval_s
        From the begin of one save to the next, if there were two.
    engine
        The engine that moved the bytes, if a save was watched.
    """
    if verdict is Verdict.CALM:
        return ()
    advice = []
    if verdict is not Verdict.DIRTY:
        advice.append(_ceilings(change, staging_bytes=staging_bytes, interval_s=interval_s))
    if _page_cache_has_a_part(change):
        advice.append(_page_cache(change, interval_s=interval_s, engine=engine))
    if verdict is Verdict.SWAPPING:
        advice.append("set vm.swappiness to 1, so that the page cache is evicted before processes")
    return tuple(advice)


def _ceilings(change: Change, *, staging_bytes: int | None, interval_s: float | None) -> str:
    """The seed of all advice: smaller buffers, or longer intervals."""
    ways = []
    total = change.last.get("total_bytes", 0)
    if staging_bytes and staging_bytes >= total * STAGING_SHARE_NOTABLE:
        ways.append(f"halve staging_bytes_max to {format_bytes(staging_bytes / 2)}")
    if interval_s is not None:
        ways.append(
            f"save every {format_seconds(2 * interval_s)} instead of {format_seconds(interval_s)}"
        )
    if not ways:
        ways.append("use smaller buffers for checkpoints or save less often")
    return " or ".join(ways) + _room(change)


def _room(change: Change) -> str:
    """How little room there was at the worst moment, the host's or its cgroup's."""
    free = change.low.get("available_bytes")
    limit, used = (change.last.get("cgroup_limit_bytes"), change.high.get("cgroup_bytes"))
    if limit is not None and used is not None and (free is None or limit - used < free):
        left, of = format_bytes(max(limit - used, 0)), format_bytes(limit)
        return f": only {left} of the memory cgroup's {of} were free at the worst moment"
    if free is None:
        return ""
    return f": only {format_bytes(free)} were available at the worst moment"


def _page_cache_has_a_part(change: Change) -> bool:
    """Whether dirty pages grew by as much as the kernel leaves alone."""
    background = change.last.get("dirty_background_bytes")
    grown = change.unsettled_high_bytes - change.unsettled_first_bytes
    return background is not None and grown >= background // 2


def _page_cache(change: Change, *, interval_s: float | None, engine: str | None) -> str:
    """What to do about dirty pages."""
    peak = change.unsettled_high_bytes
    written = change.rate("drive_written_bytes")
    text = f"{format_bytes(peak)} of dirty pages waited for the drives"
    if written:
        text += (
            f", which took {format_bytes(written)} a second and need"
            f" {format_seconds(peak / written)} for them"
        )
    if engine == BUFFERED:
        return f"{text}: put checkpoints on a filesystem where engine 'direct' works"
    if engine is not None:
        return (
            f"{text}, though this save left none of them: look for another writer, or lower"
            " vm.dirty_background_bytes (`dcp-gds sysctl`)"
        )
    longer = "" if interval_s is None else f", save every {format_seconds(2 * interval_s)}"
    return (
        f"{text}: write checkpoints past the page cache (GDSWriter){longer}, or lower"
        " vm.dirty_background_bytes (`dcp-gds sysctl`)"
    )
