"""Reports: what a save or a load did, on one rank."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from dcp_gds.checkpoint.blocked import Blocked
from dcp_gds.hostmem.memoryreport import MemoryReport

__all__ = ["LoadReport", "SaveReport", "with_blocked"]

_GIB = 1 << 30
# Less than that is not worth a reason.
_BLOCKED_S_MIN = 0.1


@dataclass(frozen=True, slots=True)
class _TransferReport:
    """What a save and a load have in common.

    Parameters
    ----------
    path
        The checkpoint's directory.
    token
        Names this save among all others; None where a stock writer made the checkpoint.
    rank
        The rank in its process group.
    engine, engine_reason
        The engine that was selected, and why, as one sentence.
    fallbacks
        Why a better path was not taken, one sentence each; empty if the best one was.
    items, files
        Write or read items, and shard files.
    bytes
        Payload: bytes of tensors and byte items.
    bytes_by_engine
        Bytes that each engine moved, padding and rounding to blocks included.
    seconds
        Wall time on this rank, from the first resolved item to the last durable byte, or to the
        last byte read.
    staging_bytes_peak
        Most host memory in use for staging slots at one time.
    retries
        How often a transfer went on after it was short or interrupted, or was tried again after
        EAGAIN or EIO.
    """

    path: str
    token: str | None
    rank: int
    engine: str
    engine_reason: str
    fallbacks: tuple[str, ...]
    items: int
    files: int
    bytes: int
    bytes_by_engine: dict[str, int]
    seconds: float
    staging_bytes_peak: int
    retries: int

    @property
    def gb_per_s(self) -> float:
        """Payload by wall time in 10^9 bytes a second; 0 when nothing was moved."""
        return self.bytes / self.seconds / 1e9 if self.bytes else 0.0

    def to_json(self) -> str:
        """Return all fields and `gb_per_s` as one JSON object."""
        return json.dumps(dataclasses.asdict(self) | {"gb_per_s": self.gb_per_s}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class SaveReport(_TransferReport):
    """What a save did on this rank. `GDSWriter.report` holds it once the rank's data are written.

    Parameters
    ----------
    sync_seconds
        The part of `seconds` that fdatasync and fsync took.
    checksums
        Whether CRC-32s were computed.
    synced
        Whether the data were synced; False means that a power cut may lose them.
    unsynced_reason
        One sentence when the name of the directory, which was there before, could not be made
        durable, since its parent may not be read or its filesystem does not sync it; else empty.
    blocked_seconds
        How long an asynchronous save held its trainer: in `async_save`, before the step of a
        guarded optimizer, and in `wait_sources`.
    blocked_plan_seconds, blocked_copy_seconds, blocked_drive_seconds
        The parts of it in which DCP planned, tensors were copied, and tensors that found no room
        were written from their own memory.
    blocked_reason
        One sentence when the drive was the cause; else empty.
    host_bytes_max
        The ceiling for copies of the state; 0 for a synchronous save.
    copied_bytes, direct_bytes
        Bytes of tensors that were copied in host memory by an asynchronous save, and of large ones
        that were written from their own memory while the trainer waited.
    metadata_seconds
        What committing took, on the rank that did it: `.metadata`, syncs and removing old files.
    durable_seconds
        From the call until all was durable that this rank knows of: the whole checkpoint on the
        rank that committed it, on others their shard file.
    committed
        True on the rank that published `.metadata`, once it has; False before, and on every other
        rank.
    files_removed, files_kept
        Files that this rank's commit has removed, and those that it could not: shard files of the
        replaced checkpoint, and what killed and failed saves have left in the directory.
    host_memory
        What the host's memory went through from the save's begin to the last durable byte, with a
        verdict and advice.
    """

    sync_seconds: float = 0.0
    checksums: bool = True
    synced: bool = True
    unsynced_reason: str = ""
    committed: bool = False
    files_removed: int = 0
    files_kept: int = 0
    host_memory: MemoryReport | None = None
    blocked_seconds: float = 0.0
    blocked_plan_seconds: float = 0.0
    blocked_copy_seconds: float = 0.0
    blocked_drive_seconds: float = 0.0
    blocked_reason: str = ""
    host_bytes_max: int = 0
    copied_bytes: int = 0
    direct_bytes: int = 0
    metadata_seconds: float = 0.0
    durable_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadReport(_TransferReport):
    """What a load did on this rank. `GDSReader.report` holds it once the rank's data are read.

    Parameters
    ----------
    verified_bytes, unverified_bytes
        Payload bytes that were compared with a checksum, and those that could not be; together
        `bytes`.
    """

    verified_bytes: int = 0
    unverified_bytes: int = 0

    @property
    def bytes_read(self) -> int:
        """Bytes asked of the kernel, rounding to blocks included."""
        return sum(self.bytes_by_engine.values())


def with_blocked(report: SaveReport, blocked: Blocked) -> SaveReport:
    """The report with how long the trainer was held, and why if the drive was the cause."""
    reason = ""
    if report.direct_bytes and blocked.drive_seconds >= _BLOCKED_S_MIN:
        rate = report.direct_bytes / blocked.drive_seconds / 1e9
        reason = (
            f"blocked {blocked.seconds:.1f} s because {report.direct_bytes / _GIB:.1f} GiB did not"
            f" fit {report.host_bytes_max / _GIB:.1f} GiB of staging, at {rate:.2f} GB/s"
        )
    return dataclasses.replace(
        report,
        blocked_seconds=blocked.seconds,
        blocked_plan_seconds=blocked.plan_seconds,
        blocked_copy_seconds=blocked.copy_seconds,
        blocked_drive_seconds=blocked.drive_seconds,
        blocked_reason=reason,
    )
