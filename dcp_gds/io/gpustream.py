"""GPU stream: one GPU's stream for copies to and from pinned host memory, by the CUDA driver."""

from __future__ import annotations

import contextlib
import ctypes

from dcp_gds.errors import TransferError, UnsupportedError
from dcp_gds.io.cudadriver import CudaContext

__all__ = ["GpuStream"]

# An event that measures no time costs less.
_EVENT_NO_TIMING = 2
# Pinned for every GPU of the process, not for the one whose context is current.
_REGISTER_PORTABLE = 1


class GpuStream:
    """A stream of its own in the primary context of a GPU, which torch uses too.

    Copies are queued, and done when an event behind them has been waited for. Whoever queues one
    leaves both its ends alone until then. Any thread may call it, one at a time.

    Parameters
    ----------
    ordinal
        The GPU's number among those that this process sees.

    Raises
    ------
    UnsupportedError
        If there is no driver, or no such GPU.
    TransferError
        From every method: a call of the driver failed; says which, on which GPU, and with what.
    """

    def __init__(self, ordinal: int) -> None:
        self._context = CudaContext(ordinal=ordinal)
        self._stream = ctypes.c_void_p(self._context.new_stream())
        # Recorded anew for each wait: a stream that waits has taken note of it by then.
        self._produced = self._new_event()

    @property
    def handle(self) -> int:
        """The stream, as the driver and torch know it."""
        assert self._stream.value is not None
        return self._stream.value

    def follow(self, stream: int) -> None:
        """Let what is queued here from now on wait for what is in `stream` now."""
        with self._context.current():
            self._context.call("cuEventRecord", self._produced, ctypes.c_void_p(stream))
            self._context.call("cuStreamWaitEvent", self._stream, self._produced, 0)

    def to_host(self, source: int, *, target: int, length: int) -> None:
        """Queue a copy of device memory into host memory."""
        with self._context.current():
            self._context.call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(length),
                self._stream,
            )

    def mark(self) -> ctypes.c_void_p:
        """Return an event that stands behind all that is queued; it goes with `wait`."""
        event = self._new_event()
        with self._context.current():
            self._context.call("cuEventRecord", event, self._stream)
        return event

    def wait(self, event: ctypes.c_void_p) -> None:
        """Wait, without the interpreter lock, for what is before the event."""
        with self._context.current():
            self._context.call("cuEventSynchronize", event)
            self._context.call("cuEventDestroy_v2", event)

    def drain(self) -> None:
        """Wait until nothing is queued; a failure of what was queued is not raised again."""
        with contextlib.suppress(TransferError), self._context.current():
            self._context.call("cuStreamSynchronize", self._stream)

    def pin(self, address: int, *, length: int) -> None:
        """Register host memory, so that copies from and to it run by themselves.

        Raises
        ------
        UnsupportedError
            If the driver refuses.
        """
        try:
            with self._context.current():
                self._context.call(
                    "cuMemHostRegister_v2",
                    ctypes.c_void_p(address),
                    ctypes.c_size_t(length),
                    _REGISTER_PORTABLE,
                )
        except TransferError as error:
            raise UnsupportedError(
                f"cuda:{self._context.ordinal}: a staging slot of {length} bytes cannot be pinned:"
                f" {error.strerror}; look at the memory that may be locked, and lower"
                " staging_bytes_max"
            ) from error

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        with self._context.current():
            self._context.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def _new_event(self) -> ctypes.c_void_p:
        """Create an event."""
        event = ctypes.c_void_p()
        with self._context.current():
            self._context.call("cuEventCreate", ctypes.byref(event), _EVENT_NO_TIMING)
        return event
