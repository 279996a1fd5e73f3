"""Reports: what a save or a load did, on one rank."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from dcp_gds.hostmem.memoryreport import MemoryReport

__all__ = ["LoadReport", "SaveReport"]


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
    committed: bool = False
    files_removed: int = 0
    files_kept: int = 0
    host_memory: MemoryReport | None = None


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
