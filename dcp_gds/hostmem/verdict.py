"""Verdict: whether the host's memory is calm, in one word, with the numbers behind it."""

from __future__ import annotations

import mmap
from enum import StrEnum

from dcp_gds.hostmem.tally import Change
from dcp_gds.hostmem.units import format_bytes

__all__ = ["Verdict", "judge", "reasons_for"]

# A page or two that were swapped out long ago come back at any time, and mean nothing.
SWAPPED_BYTES_CALM = 1 << 20
# Where the kernel does not say when it begins to write back.
DIRTY_BACKGROUND_BYTES_UNKNOWN = 1 << 30
# The kernel begins to write at dirty_background_*, so half of that in one go is a burst that the
# drive does not take away; a few MiB of logs are not, however little memory there is.
DIRTY_SHARE = 0.5
DIRTY_BYTES_CALM = 64 << 20


class Verdict(StrEnum):
    """What the host's memory went through; later ones are worse."""

    CALM = "calm"
    DIRTY = "dirty pages piling up"
    SCANNING = "kswapd scanning"
    SWAPPING = "swapping"


def judge(change: Change) -> Verdict:
    """Return the worst that happened."""
    if swapped_bytes(change) >= SWAPPED_BYTES_CALM:
        return Verdict.SWAPPING
    if scanned_pages(change):
        return Verdict.SCANNING
    if _piled_up_bytes(change) >= _pile_bytes(change):
        return Verdict.DIRTY
    return Verdict.CALM


def reasons_for(change: Change) -> tuple[str, ...]:
    """Return the numbers behind the verdict, a sentence each; none when all is calm."""
    reasons = []
    if (swapped := swapped_bytes(change)) >= SWAPPED_BYTES_CALM:
        reasons.append(f"{format_bytes(swapped)} went to or came from swap")
    if scanned := scanned_pages(change):
        kswapd = change.deltas.get("pgscan_kswapd", 0)
        reasons.append(
            f"the kernel scanned {scanned:,} pages for something to evict, {kswapd:,} of them by"
            f" kswapd and {scanned - kswapd:,} in processes that had to wait"
        )
    if (piled := _piled_up_bytes(change)) >= _pile_bytes(change):
        reasons.append(
            f"dirty pages grew by {format_bytes(piled)}, to"
            f" {format_bytes(change.unsettled_high_bytes)}"
        )
    return tuple(reasons)


def swapped_bytes(change: Change) -> int:
    """Bytes that were swapped out or in: the host's, or its memory cgroup's if that tells more."""
    pages = change.deltas.get("pswpin", 0) + change.deltas.get("pswpout", 0)
    # A cgroup's swap is a part of the host's, but its gauge also knows what a virtual machine's
    # zswap keeps from the host's counters.
    grown = change.high.get("cgroup_swap_bytes", 0) - change.first.get("cgroup_swap_bytes", 0)
    return max(pages * mmap.PAGESIZE, grown)


def scanned_pages(change: Change) -> int:
    """Pages that kswapd, or a process in need of memory, looked at to evict them.

    Reclaim within a memory cgroup is not among them: a cgroup that reads files is always full of
    clean pages, and takes the oldest away for each new one.
    """
    return change.deltas.get("pgscan_kswapd", 0) + change.deltas.get("pgscan_direct", 0)


def _piled_up_bytes(change: Change) -> int:
    """By how much dirty pages grew at most."""
    return change.unsettled_high_bytes - change.unsettled_first_bytes


def _pile_bytes(change: Change) -> int:
    """From what growth on dirty pages pile up."""
    background = change.last.get("dirty_background_bytes", DIRTY_BACKGROUND_BYTES_UNKNOWN)
    return max(int(background * DIRTY_SHARE), DIRTY_BYTES_CALM)
