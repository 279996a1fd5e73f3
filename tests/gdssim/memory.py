"""Simulated device: its memory, streams and events, through the driver API that kvikio uses too."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tests.gdssim.simulator import Simulator

__all__ = ["SimBuffer", "SimGpu"]

NON_BLOCKING = 1


class SimGpu:
    """One device. Each call makes the device's primary context current for as long as it takes."""

    def __init__(self, simulator: Simulator, *, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._simulator = simulator
        self._context = ctypes.c_void_p()
        simulator.check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device the current one of this thread."""
        self._simulator.check("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._simulator.check("cuCtxPopCurrent_v2", None)

    def allocate(self, length: int) -> SimBuffer:
        """Allocate memory; MemoryError when the device has no such room."""
        address = ctypes.c_uint64()
        with self.current():
            result = self._simulator.cuda.cuMemAlloc_v2(
                ctypes.byref(address), ctypes.c_size_t(length)
            )
        if result:
            raise MemoryError(f"cuMemAlloc of {length} bytes returned {result}")
        return SimBuffer(self, address.value, length=length)

    def free(self, address: int) -> None:
        """Give memory back; waits for the device."""
        self._simulator.check("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, source: int, *, target: int, length: int, stream: int | None = None) -> None:
        """Copy host memory to the device; done on return, or queued in `stream`."""
        self._copy("cuMemcpyHtoD", source, target=target, length=length, stream=stream)

    def download(self, source: int, *, target: int, length: int, stream: int | None = None) -> None:
        """Copy device memory to the host; done on return, or queued in `stream`."""
        self._copy("cuMemcpyDtoH", source, target=target, length=length, stream=stream)

    def copy(self, source: int, *, target: int, length: int, stream: int = 0) -> None:
        """Queue a copy within the device, or to another; 0 is the NULL stream."""
        self._copy("cuMemcpyDtoD", source, target=target, length=length, stream=stream)

    def fill(self, target: int, *, value: int, length: int, stream: int = 0) -> None:
        """Queue the setting of every byte."""
        with self.current():
            self._simulator.check(
                "cuMemsetD8Async",
                ctypes.c_uint64(target),
                ctypes.c_ubyte(value),
                ctypes.c_size_t(length),
                ctypes.c_void_p(stream),
            )

    def new_stream(self, *, blocking: bool = False) -> int:
        """Create a stream; a blocking one and the NULL stream wait for each other."""
        stream = ctypes.c_void_p()
        flags = ctypes.c_uint(0 if blocking else NON_BLOCKING)
        with self.current():
            self._simulator.check("cuStreamCreate", ctypes.byref(stream), flags)
        assert stream.value is not None
        return stream.value

    def wait_stream(self, stream: int) -> None:
        """Wait until all that is queued in it is done."""
        with self.current():
            self._simulator.check("cuStreamSynchronize", ctypes.c_void_p(stream))

    def record_event(self, stream: int) -> int:
        """Return a new event that stands behind what is queued in the stream."""
        event = ctypes.c_void_p()
        with self.current():
            self._simulator.check("cuEventCreate", ctypes.byref(event), 0)
            self._simulator.check("cuEventRecord", event, ctypes.c_void_p(stream))
        assert event.value is not None
        return event.value

    def wait_event(self, event: int) -> None:
        """Wait until the work before the event is done, and forget the event."""
        self._simulator.check("cuEventSynchronize", ctypes.c_void_p(event))
        self._simulator.check("cuEventDestroy_v2", ctypes.c_void_p(event))

    def is_done(self, event: int) -> bool:
        """Whether the work before the event is done; the second time it always is."""
        return bool(self._simulator.cuda.cuEventQuery(ctypes.c_void_p(event)) == 0)

    def stream_waits(self, stream: int, *, event: int) -> None:
        """Let what is queued in `stream` from now on wait for the event."""
        self._simulator.check(
            "cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0
        )

    def _copy(
        self, function: str, source: int, *, target: int, length: int, stream: int | None
    ) -> None:
        """Copy by the call of that name, with `stream` by its asynchronous form."""
        arguments: list[object] = [
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(length),
        ]
        if stream is not None:
            arguments.append(ctypes.c_void_p(stream))
        with self.current():
            kind = "_v2" if stream is None else "Async_v2"
            self._simulator.check(f"{function}{kind}", *arguments)


class SimBuffer:
    """Device memory, as an object that kvikio takes; freed by `free`, or with the process."""

    def __init__(self, gpu: SimGpu, address: int, *, length: int) -> None:
        self.gpu, self.address, self.length = gpu, address, length

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.length,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }

    def part(self, start: int, *, length: int) -> SimBuffer:
        """Return a view of `length` bytes; this buffer has to outlive it."""
        assert 0 <= start <= start + length <= self.length
        return SimBuffer(self.gpu, self.address + start, length=length)

    def write(self, data: bytes) -> None:
        """Set the first bytes."""
        assert len(data) <= self.length
        source = ctypes.c_char_p(data)
        address = ctypes.cast(source, ctypes.c_void_p).value
        assert address is not None
        self.gpu.upload(address, target=self.address, length=len(data))

    def read(self) -> bytes:
        """Return all bytes."""
        data = ctypes.create_string_buffer(max(self.length, 1))
        self.gpu.download(self.address, target=ctypes.addressof(data), length=self.length)
        return data.raw[: self.length]

    def free(self) -> None:
        """Give the memory back."""
        self.gpu.free(self.address)
