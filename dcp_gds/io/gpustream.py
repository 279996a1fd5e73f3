"""GPU stream: one GPU's stream for copies to and from pinned host memory, by the CUDA driver."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dcp_gds.errors import TransferError, UnsupportedError

__all__ = ["GpuStream", "load_driver"]

_LIBRARY = "libcuda.so.1"
# cuda.h: the stream does not wait for the NULL stream, nor that one for it.
_STREAM_NON_BLOCKING = 1
# An event that measures no time costs less.
_EVENT_NO_TIMING = 2
# Pinned for every GPU of the process, not for the one whose context is current.
_REGISTER_PORTABLE = 1
_OUT_OF_MEMORY = 2


def load_driver() -> ctypes.CDLL:
    """Load the CUDA driver, which torch has loaded already where a tensor is on a GPU.

    Raises
    ------
    UnsupportedError
        If it is not there.
    """
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnsupportedError(
            f"{_LIBRARY} cannot be loaded: {error}; install the NVIDIA driver"
        ) from error


class GpuStream:
    """A stream of its own in the primary context of a GPU, which torch uses too.

    Copies are queued, and done when an event behind them has been waited for. Whoever queues one
    leaves both its ends alone until then. Any thread may call it, one at a time.

    Raises
    ------
    TransferError
        From every method: a call of the driver failed; says which, on which GPU, and with what.
    """

    def __init__(self, driver: ctypes.CDLL, ordinal: int) -> None:
        self._driver = driver
        self._name = f"cuda:{ordinal}"
        self._context = ctypes.c_void_p()
        self._stream = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)
        with self._current():
            self._call("cuStreamCreate", ctypes.byref(self._stream), _STREAM_NON_BLOCKING)
        # Recorded anew for each wait: a stream that waits has taken note of it by then.
        self._produced = self._new_event()

    @property
    def handle(self) -> int:
        """The stream, as the driver and torch know it."""
        assert self._stream.value is not None
        return self._stream.value

    def follow(self, stream: int) -> None:
        """Let what is queued here from now on wait for what is in `stream` now."""
        with self._current():
            self._call("cuEventRecord", self._produced, ctypes.c_void_p(stream))
            self._call("cuStreamWaitEvent", self._stream, self._produced, 0)

    def to_host(self, source: int, *, target: int, length: int) -> None:
        """Queue a copy of device memory into host memory."""
        self._copy("cuMemcpyDtoHAsync_v2", source, target=target, length=length)

    def to_device(self, source: int, *, target: int, length: int) -> None:
        """Queue a copy of host memory into device memory."""
        self._copy("cuMemcpyHtoDAsync_v2", source, target=target, length=length)

    def mark(self) -> ctypes.c_void_p:
        """Return an event that stands behind all that is queued; it goes with `wait`."""
        event = self._new_event()
        with self._current():
            self._call("cuEventRecord", event, self._stream)
        return event

    def wait(self, event: ctypes.c_void_p) -> None:
        """Wait, without the interpreter lock, for what is before the event."""
        with self._current():
            self._call("cuEventSynchronize", event)
            self._call("cuEventDestroy_v2", event)

    def drain(self) -> None:
        """Wait until nothing is queued; a failure of what was queued is not raised again."""
        with self._current():
            self._driver.cuStreamSynchronize(self._stream)

    def pin(self, address: int, *, length: int) -> None:
        """Register host memory, so that copies from and to it run by themselves.

        Raises
        ------
        UnsupportedError
            If the driver refuses.
        """
        with self._current():
            result = self._driver.cuMemHostRegister_v2(
                ctypes.c_void_p(address), ctypes.c_size_t(length), _REGISTER_PORTABLE
            )
        if result:
            raise UnsupportedError(
                f"{self._name}: cuMemHostRegister of a staging slot of {length} bytes failed:"
                f" {self._reason(result)}; look at the memory that may be locked, and lower"
                " staging_bytes_max"
            )

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        with self._current():
            self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the GPU the current one of this thread, and then the one that was it before."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _new_event(self) -> ctypes.c_void_p:
        """Create an event."""
        event = ctypes.c_void_p()
        with self._current():
            self._call("cuEventCreate", ctypes.byref(event), _EVENT_NO_TIMING)
        return event

    def _copy(self, function: str, source: int, *, target: int, length: int) -> None:
        """Queue a copy by the call of that name."""
        with self._current():
            self._call(
                function,
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(length),
                self._stream,
            )

    def _call(self, function: str, *arguments: object) -> None:
        """Call the driver."""
        result = getattr(self._driver, function)(*arguments)
        if result:
            raise TransferError(
                errno.ENOMEM if result == _OUT_OF_MEMORY else errno.EIO,
                f"{function} failed: {self._reason(result)}",
                self._name,
            )

    def _reason(self, result: int) -> str:
        """What the driver says of a result."""
        text = ctypes.c_char_p()
        self._driver.cuGetErrorName(result, ctypes.byref(text))
        return f"CUDA error {result} ({(text.value or b'unknown').decode(errors='replace')})"
