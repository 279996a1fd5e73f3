"""Options: the writer's and the reader's, checked before any I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

from dcp_gds.errors import ConfigError

__all__ = ["EngineChoice", "ReaderOptions", "WriterOptions", "directory_option"]

MIB = 1 << 20

# 8 MiB is where local NVMe drives reach their bandwidth with a few requests in flight; more only
# adds memory.
TRANSFER_BYTES_DEFAULT = 8 * MIB
TRANSFER_BYTES_MIN = 64 << 10
# A transfer lies within one checksum block, which is at most this long.
TRANSFER_BYTES_MAX = 16 * MIB
CHECKSUM_BLOCK_BYTES_MIN = 4 * MIB
QUEUE_DEPTH_DEFAULT = 8
QUEUE_DEPTH_MAX = 256
# One slot for each transfer in flight and as many that wait for a checksum would do with a fourth
# of this; slots are made only when they are needed.
STAGING_BYTES_DEFAULT = 64 * MIB
# Seams are written a slot at a time: 1 MiB is enough for a drive's bandwidth with a few in flight,
# and a small seam between two tensors does not hold more than that.
STAGING_SLOT_BYTES = MIB
# One slot is filled while another is written, and tails wait for their payload in a third.
STAGING_BYTES_MIN = 4 * STAGING_SLOT_BYTES

ENGINE_CHOICES = ("auto", "gds", "direct", "buffered")
EngineChoice = str


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """What saving and loading share: see `GDSWriter` and `GDSReader` for the meaning."""

    engine: EngineChoice = "auto"
    staging_bytes_max: int = STAGING_BYTES_DEFAULT
    queue_depth: int = QUEUE_DEPTH_DEFAULT
    transfer_bytes: int = TRANSFER_BYTES_DEFAULT

    @property
    def checksum_block_bytes(self) -> int:
        """Length of a checksum block: a transfer, but no less than 4 MiB, so that there are few."""
        return max(self.transfer_bytes, CHECKSUM_BLOCK_BYTES_MIN)

    def __post_init__(self) -> None:
        if self.engine not in ENGINE_CHOICES:
            raise ConfigError(f"engine is {self.engine!r}; expected one of {ENGINE_CHOICES}")
        _check_int("queue_depth", self.queue_depth, low=1, high=QUEUE_DEPTH_MAX)
        _check_int(
            "transfer_bytes", self.transfer_bytes, low=TRANSFER_BYTES_MIN, high=TRANSFER_BYTES_MAX
        )
        if self.transfer_bytes & (self.transfer_bytes - 1):
            raise ConfigError(f"transfer_bytes is {self.transfer_bytes}; expected a power of two")
        _check_int("staging_bytes_max", self.staging_bytes_max, low=STAGING_BYTES_MIN, high=None)
        for field in fields(self):
            # Annotations are text here. `overwrite="no"` would replace a checkpoint.
            if field.type == "bool":
                _check_bool(field.name, getattr(self, field.name))


@dataclass(frozen=True, slots=True)
class WriterOptions(TransferOptions):
    """Options of `GDSWriter`."""

    host_bytes_max: int | None = None
    host_memory_fraction: float | None = None
    overwrite: bool = False
    checksum: bool = True
    sync: bool = True

    def __post_init__(self) -> None:
        # Not super(): a slotted dataclass is another class than the one that the compiler saw.
        TransferOptions.__post_init__(self)
        if self.host_bytes_max is not None:
            _check_int("host_bytes_max", self.host_bytes_max, low=0, high=None)


@dataclass(frozen=True, slots=True)
class ReaderOptions(TransferOptions):
    """Options of `GDSReader`."""

    verify: bool = True
    strict_dtype: bool = False
    trusted: bool = True


def directory_option(path: str | os.PathLike[str]) -> Path:
    """A checkpoint's directory as it was given.

    Raises
    ------
    ConfigError
        If it is the address of a remote store, which would become a directory of that name here.
    """
    if "://" in os.fspath(path):
        raise ConfigError(f"{path} is the address of a remote store; expected a local directory")
    return Path(path)


def _check_bool(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected True or False")


def _check_int(name: str, value: int, *, low: int, high: int | None) -> None:
    """Raise ConfigError unless `value` is an int within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}; expected a whole number")
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"{low} to {high}"
        raise ConfigError(f"{name} is {value}; expected {bound}")
