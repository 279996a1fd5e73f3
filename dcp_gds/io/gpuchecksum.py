"""GPU checksum: CRC-32 of a GPU's memory, computed there by the kernels of crc32.cu.

Nothing else imports cupy, which compiles them for the GPU at hand and keeps the result on disk.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cupy

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.checksum import crc32_of_zeros

__all__ = ["GpuChecksum"]

_SOURCE = Path(__file__).with_name("crc32.cu")
# As in crc32.cu: threads of a block, bytes that a block covers, and sizeof(Crc32Tables).
_THREADS = 256
_SPAN_BYTES = 64 << 10
_TABLE_BYTES = 5376
# A block begins at a word before its first byte, so up to 3 bytes of it are not the message's.
_WORD_REST = 3


@dataclass(frozen=True, slots=True)
class _Lane:
    """What one call at a time needs: a stream, and 4 bytes of the GPU's for the result."""

    stream: Any
    result: Any


class GpuChecksum:
    """Computes CRC-32s (IEEE) of memory of one GPU. Calls may be made by any thread.

    Its streams have the lowest priority, which is CUDA's default, so that the kernels of training
    come first, and wait for no other.

    Parameters
    ----------
    ordinal
        The GPU's number among those that this process sees.
    lanes
        Most calls at a time; another one waits for its turn.

    Raises
    ------
    UnsupportedError
        If the kernels cannot be compiled or run.
    """

    def __init__(self, *, ordinal: int, lanes: int) -> None:
        self._device = cupy.cuda.Device(ordinal)
        self._lanes: SimpleQueue[_Lane] = SimpleQueue()
        try:
            with self._device:
                module = cupy.RawModule(code=_SOURCE.read_text(encoding="utf-8"))
                self._kernel = module.get_function("crc32_raw")
                self._tables = cupy.empty(_TABLE_BYTES, dtype=cupy.uint8)
                for _ in range(lanes):
                    stream = cupy.cuda.Stream(non_blocking=True)
                    self._lanes.put(_Lane(stream, cupy.empty(1, dtype=cupy.uint32)))
                with stream:
                    setup = module.get_function("crc32_setup")
                    setup((1,), (_THREADS,), (self._tables,))
                stream.synchronize()
        except (RuntimeError, ImportError, cupy.cuda.compiler.CompileException) as error:
            raise UnsupportedError(
                f"CRC-32 cannot be computed on GPU {ordinal}: {error}; install the cupy of this"
                " CUDA version (extra cu12 or cu13), or save with checksum=False"
            ) from error

    def __call__(self, address: int, length: int) -> int:
        """Return the CRC-32 of `length` bytes at `address`.

        They have been written when this is called, and are left alone until it returns.

        Raises
        ------
        OSError
            EIO if the GPU fails.
        """
        blocks = -(-(length + _WORD_REST) // _SPAN_BYTES)
        lane = self._lanes.get()
        try:
            with self._device, lane.stream:
                lane.result.fill(0)
                arguments = (cupy.uint64(address), cupy.uint64(length), self._tables, lane.result)
                self._kernel((blocks,), (_THREADS,), arguments)
                # Waits for the stream.
                raw = int(lane.result.get(stream=lane.stream)[0])
        except RuntimeError as error:
            raise OSError(errno.EIO, f"CRC-32 on the GPU: {error}") from error
        finally:
            self._lanes.put(lane)
        return raw ^ crc32_of_zeros(length)
