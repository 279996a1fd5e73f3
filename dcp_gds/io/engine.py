"""Engine: the one protocol by which bytes move between memory and a file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from dcp_gds.errors import TransferError

if TYPE_CHECKING:
    # shardfile imports direct, and direct imports this module.
    from dcp_gds.io.shardfile import ShardFile

__all__ = ["Completion", "Engine", "EngineName", "Operation", "Transfer"]


class EngineName(StrEnum):
    """The engines that can move bytes; reports name them by these values."""

    GDS = "gds"
    DIRECT = "direct"
    BUFFERED = "buffered"


class Operation(StrEnum):
    """What a transfer does, seen from memory."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One request: `length` bytes between memory at `address` and `file` at `offset`.

    The memory is the host's, but for an engine that says otherwise.

    A read may have any address, offset and length: an engine that needs alignment rounds out to
    whole blocks through a bounce buffer of its own. A write's offset and length are multiples of
    `file.alignment`, because rounding a write out would race with its neighbours; its address may
    be anything, but only an address congruent with the offset is written without a copy. The
    submitter owns the memory and leaves it alone (a write: unchanged) until the transfer has been
    reaped.
    """

    operation: Operation
    file: ShardFile
    address: int
    length: int
    offset: int
    checksum: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of one transfer.

    `crc32` is the CRC-32 (IEEE) of exactly the `length` bytes asked for, None unless `checksum` was
    set and the transfer succeeded. `moved` counts the bytes asked of the kernel, rounding to blocks
    included. `retries` counts short transfers that were resumed, and EINTR, EAGAIN and EIO after
    which it was tried again. `error` is None on success.
    """

    transfer: Transfer
    moved: int
    crc32: int | None = None
    retries: int = 0
    error: TransferError | None = None


class Engine(Protocol):
    """Submits transfers, reaps completions, drains.

    Single-threaded for its caller: all methods are called from one thread at a time. At most
    `queue_depth` transfers are submitted and not yet reaped.
    """

    @property
    def name(self) -> EngineName:
        """The engine that moves the bytes, as reports show it."""

    @property
    def queue_depth(self) -> int:
        """Most transfers in flight."""

    @property
    def in_flight(self) -> int:
        """Transfers submitted and not yet reaped."""

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer and return at once. There is room: `in_flight < queue_depth`."""

    def reap(self) -> list[Completion]:
        """Wait for at least one completion and return all; empty when nothing is in flight."""

    def drain(self) -> list[Completion]:
        """Wait until nothing is in flight and return what had not been reaped."""

    def close(self) -> None:
        """Drain, discard, and end the engine's threads. May be called twice."""
