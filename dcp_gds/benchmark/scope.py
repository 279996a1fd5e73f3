"""Scope: how much a benchmark moves, how often, and how many settings it tries before."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import psutil

from dcp_gds.benchmark.setting import MIB
from dcp_gds.benchmark.sweep import Grid
from dcp_gds.benchmark.target import Target
from dcp_gds.errors import ConfigError

__all__ = ["Scope", "choose_scope"]

GIB = 1024 * MIB
# Blocks of every setting and tensors of every state divide it.
LENGTH_UNIT = 128 * MIB
QUICK_LENGTH, USUAL_LENGTH = 512 * MIB, 4 * GIB
# Drives of several terabytes keep tens of gigabytes in a fast cache; no more is written than this
# and a sixth of what is free, for three copies lie there at the same time.
THOROUGH_LENGTH = 64 * GIB
THOROUGH_SHARE_MAX = 1 / 6
QUICK_ROUNDS, USUAL_ROUNDS = 3, 7
TENSORS = 16
# The state, the tensors that are loaded into, and what stock's readers and stagers take.
STATE_SHARE_MAX = 1 / 6
# A stager of stock copies the whole state.
STAGED_SHARE_MAX = 1 / 3


@dataclass(frozen=True, slots=True)
class Scope:
    """Bytes of each file or checkpoint, of memory for the state, rounds, and the sweep.

    `background` tells whether asynchronous saves take part.
    """

    length: int
    memory_bytes: int
    rounds: int
    grid: Grid
    background: bool

    @property
    def disk_bytes(self) -> int:
        """Most bytes on the drive at one time: the file and two checkpoints that are read."""
        return 3 * self.length + max(self.grid.length, self.length // 8)


def choose_scope(
    target: Target,
    *,
    quick: bool,
    thorough: bool,
    length: int | None = None,
    rounds: int | None = None,
) -> Scope:
    """Return the scope of one of three sizes, with what the caller wants otherwise.

    Raises
    ------
    ConfigError
        If both sizes are wanted, or something is not positive, or no multiple of 128 MiB.
    """
    if quick and thorough:
        raise ConfigError("--quick and --thorough exclude each other; give one of them")
    if rounds is not None and rounds < 1:
        raise ConfigError(f"--rounds is {rounds}; expected at least 1")
    if length is not None and (length < LENGTH_UNIT or length % LENGTH_UNIT):
        raise ConfigError(f"--size is {length} bytes; expected a positive multiple of 128 MiB")
    available = psutil.virtual_memory().available
    if length is None:
        length = QUICK_LENGTH if quick else USUAL_LENGTH
        if thorough:
            length = _thorough_length(target)
    return Scope(
        length=length,
        memory_bytes=int(available * STATE_SHARE_MAX),
        rounds=rounds or (QUICK_ROUNDS if quick else USUAL_ROUNDS),
        grid=Grid.quick() if quick else Grid.full(),
        background=not quick and length < available * STAGED_SHARE_MAX,
    )


def _thorough_length(target: Target) -> int:
    """Past the drive's cache, as far as there is room."""
    room = int(shutil.disk_usage(target.path).free * THOROUGH_SHARE_MAX)
    return max(LENGTH_UNIT, min(THOROUGH_LENGTH, room) // LENGTH_UNIT * LENGTH_UNIT)
