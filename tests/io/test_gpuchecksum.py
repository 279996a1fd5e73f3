"""The caller of the CUDA kernels asks for the launches that make the sum zlib's.

Method: a module in cupy's place, which has the few names that are called, runs crc32.cu compiled as
C++ in host memory; it records launches, and fails as asked. No GPU and no cupy is needed.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import random
import sys
import threading
import zlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dcp_gds.errors import UnsupportedError
from tests.io.hostkernels import SOURCE, SPAN, HostKernels

THREADS = 256


class Array:
    """GPU memory of cupy's, in the host's."""

    def __init__(self, cupy: FakeCupy, length: int, dtype: Any) -> None:
        self._cupy = cupy
        # What was never set is not zero.
        self.values = np.full(length, 0x5A, dtype=dtype)

    def fill(self, value: int) -> None:
        assert self._cupy.streams, "it would run in the NULL stream"
        self.values.fill(value)

    def get(self, *, stream: Any) -> Any:
        assert stream is self._cupy.streams[-1]
        return self.values


class Stream:
    """A stream that is current within a `with` block."""

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy

    def __enter__(self) -> None:
        self._cupy.streams.append(self)

    def __exit__(self, *_: object) -> None:
        assert self._cupy.streams.pop() is self

    def synchronize(self) -> None:
        self._cupy.synchronised.append(self)


class Device(Stream):
    """The current GPU within a `with` block."""

    def __enter__(self) -> None:
        self._cupy.devices += 1

    def __exit__(self, *_: object) -> None:
        self._cupy.devices -= 1


class FakeCupy(ModuleType):
    """What of cupy is called."""

    def __init__(self, kernels: HostKernels) -> None:
        super().__init__("cupy")
        self.kernels = kernels
        self.streams: list[Stream] = []
        self.synchronised: list[Stream] = []
        self.launches: list[tuple[str, tuple[int], tuple[int]]] = []
        self.devices = 0
        self.fault: Exception | None = None
        self.uint8, self.uint32, self.uint64 = np.uint8, np.uint32, np.uint64
        compile_error = type("CompileException", (Exception,), {})
        self.cuda = SimpleNamespace(
            Device=lambda ordinal: Device(self),
            Stream=self.new_stream,
            compiler=SimpleNamespace(CompileException=compile_error),
        )

    def new_stream(self, *, non_blocking: bool) -> Stream:
        assert non_blocking
        return Stream(self)

    def empty(self, length: int, *, dtype: Any) -> Array:
        assert self.devices == 1
        return Array(self, length, dtype)

    def RawModule(self, *, code: str) -> SimpleNamespace:  # noqa: N802 - cupy's name
        assert code == SOURCE.read_text()
        if self.fault is not None:
            raise self.fault
        return SimpleNamespace(get_function=lambda name: getattr(self, name))

    def crc32_setup(self, grid: tuple[int], block: tuple[int], arguments: tuple[Array]) -> None:
        assert self.devices == len(self.streams) == 1
        assert arguments[0].values.nbytes == self.kernels.table_bytes
        self.launches.append(("crc32_setup", grid, block))

    def crc32_raw(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        assert self.devices == len(self.streams) == 1
        address, length, tables, result = arguments
        assert (address.dtype, length.dtype) == (np.uint64, np.uint64)
        assert tables.values.nbytes == self.kernels.table_bytes
        self.launches.append(("crc32_raw", grid, block))
        if self.fault is not None:
            raise self.fault
        raw = self.kernels.raw(int(address), length=int(length), blocks=grid[0])
        result.values[0] ^= np.uint32(raw)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    return HostKernels(tmp_path_factory.mktemp("crc32"))


@pytest.fixture
def cupy(kernels: HostKernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    """A module in cupy's place; ours is imported anew, with it, and forgotten again."""
    fake = FakeCupy(kernels)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    sys.modules.pop("dcp_gds.io.gpuchecksum", None)
    yield fake
    sys.modules.pop("dcp_gds.io.gpuchecksum", None)


def new_checksum(*, lanes: int = 2) -> Any:
    module = importlib.import_module("dcp_gds.io.gpuchecksum")
    return module.GpuChecksum(ordinal=0, lanes=lanes)


def test_tables_are_set_up_once_and_waited_for(cupy: FakeCupy) -> None:
    new_checksum()
    assert cupy.launches == [("crc32_setup", (1,), (THREADS,))]
    assert len(cupy.synchronised) == 1
    assert (cupy.devices, cupy.streams) == (0, [])


@pytest.mark.parametrize("shift", range(4))
def test_the_value_is_zlibs_for_every_length_and_alignment(cupy: FakeCupy, shift: int) -> None:
    checksum = new_checksum()
    data = random.Random(shift).randbytes(2 * SPAN + 64)
    memory = ctypes.create_string_buffer(data, len(data))
    start = ctypes.addressof(memory) + shift
    around = [range(SPAN - 5, SPAN + 5), range(2 * SPAN - 5, 2 * SPAN + 5)]
    for length in (*range(20), *around[0], *around[1]):
        expected = zlib.crc32(data[shift : shift + length])
        assert checksum(start, length) == expected, length
        blocks = (length + 3 + SPAN - 1) // SPAN
        assert cupy.launches[-1] == ("crc32_raw", (blocks,), (THREADS,))
    assert (cupy.devices, cupy.streams) == (0, [])


def test_no_more_calls_than_lanes_run_at_a_time(cupy: FakeCupy) -> None:
    checksum = new_checksum(lanes=1)
    entered, go_on = threading.Event(), threading.Event()

    def held(*_: object) -> None:
        entered.set()
        go_on.wait()

    checksum._kernel = held
    first = threading.Thread(target=checksum, args=(SPAN, 0))
    first.start()
    entered.wait()
    assert checksum._lanes.empty()
    go_on.set()
    first.join()
    assert not checksum._lanes.empty()


def test_a_gpu_that_fails_is_an_io_error_and_the_lane_is_free_again(cupy: FakeCupy) -> None:
    checksum = new_checksum(lanes=1)
    cupy.fault = RuntimeError("cudaErrorLaunchFailure")
    with pytest.raises(OSError, match="cudaErrorLaunchFailure") as caught:
        checksum(SPAN, 0)
    assert caught.value.errno == errno.EIO
    cupy.fault = None
    assert checksum(SPAN, 0) == 0


@pytest.mark.parametrize("kind", ["compile", "driver", "library"])
def test_a_compiler_that_fails_is_named(cupy: FakeCupy, kind: str) -> None:
    faults = {
        "compile": cupy.cuda.compiler.CompileException("no such architecture"),
        "driver": RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU"),
        "library": ImportError("libnvrtc.so.13 is missing"),
    }
    cupy.fault = faults[kind]
    with pytest.raises(UnsupportedError) as caught:
        new_checksum()
    assert f"CRC-32 cannot be computed on GPU 0: {cupy.fault}; install" in str(caught.value)
