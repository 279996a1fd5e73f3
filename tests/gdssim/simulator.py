"""Simulator: the loaded libraries of this process; faults go in, counts and records come out.

Load it before anything imports kvikio: the loader then finds the libraries by name, and they win
over installed ones. A process cannot unload it, so only child processes of a test do this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from tests.gdssim.build import Libraries
from tests.gdssim.fault import Fault

__all__ = ["Call", "Meter", "Quantity", "Simulator"]

CU_OK = 0


class Quantity(IntEnum):
    """What the simulator measures in bytes; numbers as in sim.h."""

    DEVICE = 0
    HOST_REGISTERED = 1
    HOST_ALLOCATED = 2
    CUFILE_REGISTERED = 3


@dataclass(frozen=True, slots=True)
class Meter:
    """Bytes in use, and the most that ever were since the last limit was set."""

    now: int
    peak: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its thread, device (-1: no context) and stream, and the memory it is about."""

    function: str
    thread: int
    device: int
    stream: int
    address: int
    length: int
    offset: int


class Simulator:
    """The libraries of this process, initialised."""

    def __init__(self, libraries: Libraries) -> None:
        self.cuda = ctypes.CDLL(str(libraries.cuda), mode=ctypes.RTLD_GLOBAL)
        self.cufile = ctypes.CDLL(str(libraries.cufile), mode=ctypes.RTLD_GLOBAL)
        long, name = ctypes.c_long, ctypes.c_char_p
        self.cuda.sim_inject.argtypes = [name, long, long, long, ctypes.c_int, long, ctypes.c_int]
        self.cuda.sim_calls.argtypes = self.cuda.sim_faults.argtypes = [name]
        self.cuda.sim_calls.restype = self.cuda.sim_faults.restype = long
        self.cuda.sim_record_count.restype = long
        self.cuda.sim_record.argtypes = [long, ctypes.POINTER(_Record)]
        self.cuda.sim_await_held.argtypes = [name, long]
        self.cuda.sim_limit.argtypes = [ctypes.c_int, ctypes.c_size_t]
        self.check("cuInit", ctypes.c_uint(0))

    def check(self, function: str, *arguments: object) -> None:
        """Call a function of the driver API, whose result has to be success."""
        result = getattr(self.cuda, function)(*arguments)
        assert result == CU_OK, f"{function} returned {result}"

    def inject(self, fault: Fault) -> None:
        """Let a fault act from now on, until `reset`."""
        self.cuda.sim_inject(
            fault.function.encode(),
            fault.skip,
            fault.count,
            fault.result,
            fault.error,
            fault.delay_us,
            fault.action.value,
        )

    def reset(self) -> None:
        """Forget faults, counts and records; calls that are held go on."""
        self.cuda.sim_reset()

    def release(self) -> None:
        """Let the calls go on that a fault holds."""
        self.cuda.sim_release()

    def await_held(self, function: str, *, count: int = 1) -> None:
        """Wait until `count` calls of `function` have been held since the last reset."""
        self.cuda.sim_await_held(function.encode(), count)

    def calls(self, function: str) -> int:
        """Return how often it was called.

        `cuFileWrite.unaligned` and `cuFileWrite.unregistered` count the transfers that are not in
        whole 4 KiB blocks, and those from memory that is not registered; likewise for cuFileRead.
        """
        return int(self.cuda.sim_calls(function.encode()))

    def faults(self, function: str) -> int:
        """Return how often a fault has acted on it."""
        return int(self.cuda.sim_faults(function.encode()))

    def records(self, function: str | None = None) -> list[Call]:
        """Return the calls since the last reset in their order, the last 65,536 at most."""
        return [call for call in self._records() if function in {None, call.function}]

    def meter(self, quantity: Quantity) -> Meter:
        """Return what is in use."""
        now, peak = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.sim_read_meter(quantity.value, ctypes.byref(now), ctypes.byref(peak))
        return Meter(now.value, peak.value)

    def limit(self, quantity: Quantity, *, bytes_max: int) -> None:
        """Refuse what would go beyond `bytes_max` in all, 0 for nothing; the peak starts anew."""
        self.cuda.sim_limit(quantity.value, bytes_max)

    def _records(self) -> Iterator[Call]:
        """Every record that has not been overwritten."""
        raw = _Record()
        for index in range(self.cuda.sim_record_count()):
            if self.cuda.sim_record(index, ctypes.byref(raw)):
                yield Call(
                    raw.function.decode(),
                    raw.thread,
                    raw.device,
                    raw.stream,
                    raw.address,
                    raw.length,
                    raw.offset,
                )


class _Record(ctypes.Structure):
    """`struct sim_call` of sim.h."""

    _fields_ = (
        ("function", ctypes.c_char_p),
        ("thread", ctypes.c_int),
        ("device", ctypes.c_int),
        ("stream", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
    )
