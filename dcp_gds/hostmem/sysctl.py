"""Sysctl: the kernel's settings of memory that matter to checkpoints, and what they should be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.errors import TransferError, UnsupportedError
from dcp_gds.hostmem.procfile import read_file
from dcp_gds.hostmem.units import format_bytes
from dcp_gds.hostmem.vmstat import parse_counters, parse_kib

__all__ = ["Changed", "Directive", "apply", "conf_text", "directives", "way_back"]

# 5 and 10 percent, as long as they are no more than what a drive takes in a few seconds. A percent
# of a host with terabytes is gigabytes, so from there on the forms in bytes are the right ones:
# 8 GiB are 4 seconds of a drive that writes 2 GB/s.
BACKGROUND_RATIO, DIRTY_RATIO = 5, 10
BACKGROUND_BYTES, DIRTY_BYTES = 4 << 30, 8 << 30
SWAPPINESS = 1
VFS_CACHE_PRESSURE = 50
# Each pair is one setting in two units; the kernel zeroes one when the other is written.
COUNTERPARTS = {
    "dirty_ratio": "dirty_bytes",
    "dirty_background_ratio": "dirty_background_bytes",
    "dirty_bytes": "dirty_ratio",
    "dirty_background_bytes": "dirty_background_ratio",
}
WHY_BACKGROUND = "the kernel begins to write early, in a stream and not in a burst"
WHY_DIRTY = "writers wait before dirty pages fill the memory"


@dataclass(frozen=True, slots=True)
class Directive:
    """A setting of vm.*: what it is, what it should be, and why.

    Parameters
    ----------
    name
        Without "vm.".
    now, advised
        Values; `now` is None where this kernel has none, `advised` where it is best left alone.
    good
        Whether nothing has to change.
    why
        The reason for the advice.
    means
        What `now` is on this host.
    """

    name: str
    now: int | None
    advised: int | None
    good: bool
    why: str
    means: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A setting that was changed, with its value before; a counterpart is named if that held it."""

    name: str
    value: int
    before_name: str
    before: int


def directives(root: Path = Path("/")) -> tuple[Directive, ...]:
    """Return the settings of the host whose /proc is below `root`.

    Raises
    ------
    UnsupportedError
        If it has no /proc/meminfo or no /proc/sys/vm to read.
    """
    total = parse_kib(read_file(root / "proc/meminfo")).get("MemTotal")
    if total is None or not (root / "proc/sys/vm").is_dir():
        raise UnsupportedError(
            f"{root / 'proc'} does not tell the host's memory and settings; expected a Linux"
            " /proc with meminfo and sys/vm"
        )
    return (*_dirty(root, total), *_fixed(root, total))


def conf_text(wanted: Sequence[Directive]) -> str:
    """Return a file for /etc/sysctl.d that makes the host follow the advice."""
    lines = ["# Memory settings for checkpoints. Put into /etc/sysctl.d, then: sysctl --system"]
    for directive in wanted:
        if directive.advised is not None:
            lines += [f"# {directive.why}", f"vm.{directive.name} = {directive.advised}"]
    return "\n".join(lines) + "\n"


def apply(wanted: Sequence[Directive], root: Path = Path("/")) -> Iterator[Changed]:
    """Set what is not good yet, yielding each change once it is made.

    Raises
    ------
    TransferError
        With the path and errno, if a setting cannot be written: only root can, and a container sees
        most of them read-only. What was yielded before has been changed.
    """
    for directive in wanted:
        if directive.good or directive.advised is None or directive.now is None:
            continue
        path = root / "proc/sys/vm" / directive.name
        before_name, before = directive.name, directive.now
        other = COUNTERPARTS.get(directive.name)
        if other is not None and not before:
            before_name, before = other, _value(root, other) or 0
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{directive.advised}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            hint = "; only root may set it, on the host itself"
            text = (error.strerror or str(error)) + hint
            raise TransferError(error.errno or 0, text, path) from error
        yield Changed(directive.name, directive.advised, before_name, before)


def way_back(changes: Sequence[Changed]) -> str:
    """Return the command that undoes some changes, the last one first."""
    words = [f"vm.{each.before_name}={each.before}" for each in reversed(changes)]
    return "sysctl -w " + " ".join(words) if words else ""


def _dirty(root: Path, total: int) -> Iterator[Directive]:
    """The two limits of dirty pages, in the unit that suits the host."""
    # The kernel applies the percentages to what could become dirty, free memory and page cache, and
    # tells the outcome in vmstat. All of the memory is what it could be at most.
    vmstat = parse_counters(read_file(root / "proc/vmstat"))
    page = os.sysconf("SC_PAGE_SIZE")
    in_bytes = total * DIRTY_RATIO // 100 > DIRTY_BYTES
    rows = (
        ("dirty_background", BACKGROUND_RATIO, BACKGROUND_BYTES, WHY_BACKGROUND),
        ("dirty", DIRTY_RATIO, DIRTY_BYTES, WHY_DIRTY),
    )
    for name, ratio, most_bytes, reason in rows:
        now_ratio, now_bytes = _value(root, f"{name}_ratio"), _value(root, f"{name}_bytes")
        threshold = vmstat.get(f"nr_{name}_threshold")
        means = "" if threshold is None else f"{format_bytes(threshold * page)} now; "
        if now_bytes:
            means += f"{format_bytes(now_bytes)} at most"
            low_enough = now_bytes <= (most_bytes if in_bytes else total * ratio // 100)
        else:
            means += f"up to {format_bytes(total * (now_ratio or 0) / 100)}"
            low_enough = not in_bytes and now_ratio is not None and now_ratio <= ratio
        why = reason
        if in_bytes:
            share = format_bytes(total * ratio / 100)
            why = f"{ratio}% of this host would be {share}: a limit in bytes, so that {reason}"
        suffix = "bytes" if in_bytes else "ratio"
        yield Directive(
            name=f"{name}_{suffix}",
            now=now_bytes if in_bytes else now_ratio,
            advised=most_bytes if in_bytes else ratio,
            good=low_enough,
            why=why,
            means=means,
        )
        other, value = ("ratio", now_ratio) if in_bytes else ("bytes", now_bytes)
        yield Directive(
            name=f"{name}_{other}",
            now=value,
            advised=None,
            good=True,
            why=f"the same limit in another unit; setting vm.{name}_{suffix} makes it 0",
            means="not in use" if not value else "in use",
        )


def _fixed(root: Path, total: int) -> Iterator[Directive]:
    """The settings whose advice is the same on every host."""
    swappiness = _value(root, "swappiness")
    text = "evict the page cache before the memory of processes"
    if swappiness == 0:
        text += (
            "; not 0: then nothing is swapped until free memory and page cache together are almost"
            " gone, and processes hang in reclaim or are killed"
        )
    yield _simple(root, "swappiness", SWAPPINESS, text, "of 200; 0 is never advised")
    yield _simple(
        root,
        "vfs_cache_pressure",
        VFS_CACHE_PRESSURE,
        "keep directory entries and inodes longer, which opening checkpoints needs",
        "100 evicts them as readily as the page cache",
    )
    reserve = _value(root, "min_free_kbytes")
    yield _simple(
        root,
        "min_free_kbytes",
        None,
        "free for allocations that cannot wait, such as the network's; leave it to the kernel",
        "" if reserve is None else f"{format_bytes(reserve * 1024)} kept free",
    )
    scale = _value(root, "watermark_scale_factor")
    yield _simple(
        root,
        "watermark_scale_factor",
        None,
        "how early kswapd wakes; more wakes it earlier and keeps more memory free",
        "" if scale is None else f"steps of {format_bytes(total * scale / 10_000)}",
    )
    yield _simple(
        root,
        "zone_reclaim_mode",
        0,
        "take memory of another NUMA node rather than reclaim in one's own",
        "0 takes it, anything else reclaims first",
    )


def _simple(root: Path, name: str, advised: int | None, why: str, means: str) -> Directive:
    """A directive that is good when it is what is advised, or is not there."""
    now = _value(root, name)
    good = advised is None or now is None or now == advised
    return Directive(name, now, advised if now is not None else None, good, why, means)


def _value(root: Path, name: str) -> int | None:
    """What a setting is; None if this kernel has none."""
    return parse_counters(b"value " + read_file(root / "proc/sys/vm" / name)).get("value")
