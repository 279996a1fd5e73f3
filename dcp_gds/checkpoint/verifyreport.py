"""Verify report: what a verification found in a checkpoint, and what it could not look at."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dcp_gds.errors import CorruptCheckpointError, DcpGdsError, TransferError

__all__ = ["Damage", "Findings", "Unchecked", "Verdict", "VerifyReport"]

# Of each kind so many are kept and the rest counted: a lost file has one finding for each item, and
# nobody reads a million.
KEPT_MAX = 100


class Verdict(StrEnum):
    """What a checkpoint is."""

    GOOD = "good"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong: what, in which file and where, and the item it belongs to."""

    message: str
    path: str | None = None
    offset: int | None = None
    fqn: str | None = None

    def __str__(self) -> str:
        return str(
            CorruptCheckpointError(self.message, self.path, offset=self.offset, fqn=self.fqn)
        )


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Why payload could not be checked, and how many bytes; none for what is not payload."""

    reason: str
    bytes: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify_checkpoint` found.

    Parameters
    ----------
    path
        The checkpoint's directory.
    fast
        Whether the payload was left out.
    metadata_files, tokens
        Names of the metadata files, and the tokens of the saves that wrote them; None for a stock
        writer's.
    files, items
        Shard files that the metadata name, and items in them.
    bytes, verified_bytes
        Payload, and the part of it that has the checksum that was stored.
    bytes_read
        Bytes asked of the kernel.
    damages, damage_count
        What is wrong; the first ones, and how many there are.
    unchecked
        What was not compared with a checksum, and why.
    unreadable
        Metadata or shard files that could not be looked at, and why.
    unreferenced, unreferenced_count, unreferenced_bytes
        Files in the directory that are no part of the checkpoint; the first names, and the number
        and size of all.
    engine
        What moved the bytes; "none" when nothing was read.
    seconds, staging_bytes_peak
        Wall time, and most host memory in staging slots.
    """

    path: str
    fast: bool
    metadata_files: tuple[str, ...]
    tokens: tuple[str | None, ...]
    files: int
    items: int
    bytes: int
    verified_bytes: int
    bytes_read: int
    damages: tuple[Damage, ...]
    damage_count: int
    unchecked: tuple[Unchecked, ...]
    unreadable: tuple[str, ...]
    unreferenced: tuple[str, ...]
    unreferenced_count: int
    unreferenced_bytes: int
    engine: str
    seconds: float
    staging_bytes_peak: int

    @property
    def unverified_bytes(self) -> int:
        """Payload that was not compared, or differs."""
        return self.bytes - self.verified_bytes

    @property
    def verdict(self) -> Verdict:
        """GOOD only when everything was looked at and nothing is wrong."""
        if self.damage_count:
            return Verdict.DAMAGED
        if self.unreadable:
            return Verdict.UNREADABLE
        if self.unchecked or self.unverified_bytes:
            return Verdict.UNCHECKED
        return Verdict.GOOD

    def to_json(self) -> str:
        """Return all fields, `unverified_bytes` and `verdict` as one JSON object."""
        derived = {"unverified_bytes": self.unverified_bytes, "verdict": self.verdict}
        return json.dumps(dataclasses.asdict(self) | derived, sort_keys=True)


class Findings:
    """Collects what a verification comes across.

    Parameters
    ----------
    verified
        Payload bytes that have the checksum that was stored.
    """

    def __init__(self) -> None:
        self.verified = 0
        self._items = 0
        self._bytes = 0
        self._damages: list[Damage] = []
        self._damage_count = 0
        self._unchecked: dict[str, int] = {}
        self._unreadable: list[str] = []

    @property
    def any_damage(self) -> bool:
        """Whether something is wrong so far."""
        return self._damage_count > 0

    def damage(self, error: DcpGdsError, *, fqn: str | None = None) -> None:
        """Note something that is wrong."""
        self._damage_count += 1
        if self._damage_count > KEPT_MAX:
            return
        if isinstance(error, CorruptCheckpointError):
            message, path, offset = str(error.args[0]), error.path, error.offset
            fqn = error.fqn or fqn
        elif isinstance(error, TransferError):
            message = f"{error.strerror} (errno {error.errno})"
            path, offset = str(error.filename), error.offset
        else:
            message, path, offset = str(error), None, None
        self._damages.append(Damage(message, path, offset, fqn))

    def count(self, *, items: int, length: int) -> None:
        """Count items, and their payload in bytes."""
        self._items += items
        self._bytes += length

    def leave_out(self, reason: str, *, length: int = 0) -> None:
        """Note payload, or something else, that cannot be checked."""
        self._unchecked[reason] = self._unchecked.get(reason, 0) + length

    def cannot_read(self, error: DcpGdsError) -> None:
        """Note a file that cannot be looked at."""
        if len(self._unreadable) < KEPT_MAX:
            self._unreadable.append(str(error))

    def overwritten(self, error: DcpGdsError) -> None:
        """Forget what was wrong: it was found in files of a checkpoint that is gone."""
        self._damages.clear()
        self._damage_count = 0
        self.cannot_read(error)

    def as_fields(self) -> dict[str, Any]:
        """The fields of a report that are known here."""
        return {
            "items": self._items,
            "bytes": self._bytes,
            "verified_bytes": self.verified,
            "damages": tuple(self._damages),
            "damage_count": self._damage_count,
            "unchecked": tuple(Unchecked(*pair) for pair in self._unchecked.items()),
            "unreadable": tuple(self._unreadable),
        }
