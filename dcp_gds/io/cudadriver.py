"""CUDA driver: a GPU's plain memory and a copy within it, by the driver's own library.

torch's allocator hands out parts of larger allocations, some of which cuFile cannot register.
Memory that is asked of the driver is an allocation of its own. The context is the GPU's primary
one, which torch and cupy use too, so that an address of theirs is good here.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from dcp_gds.errors import TransferError, UnsupportedError

__all__ = ["CudaContext", "load_driver"]

_LIBRARY = "libcuda.so.1"
# cuda.h: CUDA_ERROR_OUT_OF_MEMORY, and CU_STREAM_NON_BLOCKING.
_OUT_OF_MEMORY = 2
_NON_BLOCKING = 1


def load_driver() -> ctypes.CDLL:
    """Load and initialise the driver's library.

    Raises
    ------
    UnsupportedError
        If it is not there, or cannot be initialised.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnsupportedError(
            f"{_LIBRARY} cannot be loaded: {error}; install NVIDIA's driver, or in a container use"
            " the NVIDIA container toolkit"
        ) from error
    result = library.cuInit(ctypes.c_uint(0))
    if result:
        raise UnsupportedError(
            f"cuInit of {_LIBRARY} failed: {_text(library, result)}; see whether nvidia-smi runs"
        )
    return library


class CudaContext:
    """The primary context of a GPU, held until `close`; its methods may be called by any thread.

    Their errors are TransferErrors of the GPU: ENOMEM where it has no room, else EIO, with the
    driver's text.
    A forked child must not use it: CUDA does not work there. `close` does nothing there.

    Parameters
    ----------
    ordinal
        The GPU's number among those that this process sees.

    Raises
    ------
    UnsupportedError
        If there is no driver, or no such GPU.
    """

    def __init__(self, *, ordinal: int) -> None:
        self._ordinal = ordinal
        self._library = load_driver()
        self._context = ctypes.c_void_p()
        self._pid = os.getpid()
        try:
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)
        except OSError as error:
            raise UnsupportedError(
                f"GPU {ordinal} cannot be used: {error.strerror}; see whether nvidia-smi lists it"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def ordinal(self) -> int:
        """The GPU's number among those that this process sees."""
        return self._ordinal

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this GPU the thread's current one, as kvikio expects it to be."""
        self.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", None)

    def allocate(self, length: int) -> int:
        """Return the address of `length` bytes of their own; the caller frees them."""
        address = ctypes.c_uint64()
        with self.current():
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(length))
        return address.value

    def free(self, address: int) -> None:
        """Give memory back; waits for the GPU."""
        with self.current():
            self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def new_stream(self) -> int:
        """Return a stream that does not wait for the NULL stream, nor is waited for."""
        stream = ctypes.c_void_p()
        with self.current():
            self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        assert stream.value is not None
        return stream.value

    def end_stream(self, stream: int) -> None:
        """Forget a stream in which nothing is queued any more."""
        with self.current():
            self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def copy(self, *, source: int, target: int, length: int, stream: int) -> None:
        """Copy within the GPU's memory and wait until it is done."""
        with self.current():
            self.call(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(length),
                ctypes.c_void_p(stream),
            )
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def upload(self, data: bytes, *, target: int) -> None:
        """Copy host bytes to the GPU; done on return."""
        with self.current():
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(target), data, ctypes.c_size_t(len(data)))

    def download(self, source: int, *, length: int) -> bytes:
        """Return bytes of the GPU's memory."""
        data = ctypes.create_string_buffer(length)
        with self.current():
            self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(source), ctypes.c_size_t(length))
        return data.raw

    def close(self) -> None:
        """Let go of the context. May be called twice."""
        context, self._context = self._context, ctypes.c_void_p()
        if context.value is not None and os.getpid() == self._pid:
            self.call("cuDevicePrimaryCtxRelease_v2", self._ordinal)

    def call(self, function: str, *arguments: object) -> None:
        """Call the driver by one of its names; most calls need this GPU to be the current one."""
        result = getattr(self._library, function)(*arguments)
        if result:
            number = errno.ENOMEM if result == _OUT_OF_MEMORY else errno.EIO
            text = f"{function}: {_text(self._library, result)}"
            raise TransferError(number, text, f"cuda:{self._ordinal}")


def _text(library: ctypes.CDLL, result: int) -> str:
    """The driver's words for an error."""
    text = ctypes.c_char_p()
    known = library.cuGetErrorString(result, ctypes.byref(text)) == 0 and text.value
    return f"CUDA error {result}" + (f" ({text.value.decode()})" if known and text.value else "")
