"""Step engine: an Engine for tests that does each transfer when it is reaped, in random order."""

from __future__ import annotations

import ctypes
import os
import random
import zlib

from dcp_gds.errors import TransferError
from dcp_gds.io.engine import Completion, EngineName, Operation, Transfer

__all__ = ["StepEngine"]


class StepEngine:
    """Does one transfer per `reap`, drawn at random; fails the `fail_at`-th with EIO."""

    def __init__(self, *, queue_depth: int, seed: int = 0, fail_at: int | None = None) -> None:
        self.done: list[Transfer] = []
        self._queue_depth = queue_depth
        self._random = random.Random(seed)
        self._fail_at = fail_at
        self._waiting: list[Transfer] = []

    @property
    def name(self) -> EngineName:
        return EngineName.BUFFERED

    @property
    def queue_depth(self) -> int:
        return self._queue_depth

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def submit(self, transfer: Transfer) -> None:
        assert self.in_flight < self._queue_depth
        self._waiting.append(transfer)

    def reap(self) -> list[Completion]:
        if not self._waiting:
            return []
        transfer = self._waiting.pop(self._random.randrange(len(self._waiting)))
        return [self._complete(transfer)]

    def drain(self) -> list[Completion]:
        completions = []
        while self._waiting:
            completions += self.reap()
        return completions

    def close(self) -> None:
        self._waiting.clear()

    def _complete(self, transfer: Transfer) -> Completion:
        if len(self.done) == self._fail_at:
            self.done.append(transfer)
            error = TransferError(5, "injected", transfer.file.path, offset=transfer.offset)
            return Completion(transfer, 0, error=error)
        self.done.append(transfer)
        fd = transfer.file.fd
        if transfer.operation is Operation.WRITE:
            data = ctypes.string_at(transfer.address, transfer.length)
            assert os.pwrite(fd, data, transfer.offset) == transfer.length
        else:
            data = os.pread(fd, transfer.length, transfer.offset)
            ctypes.memmove(transfer.address, data, len(data))
        crc32 = zlib.crc32(data) if transfer.checksum else None
        return Completion(transfer, transfer.length, crc32)
