"""GDS window: a little GPU memory that is registered with cuFile, in slots, one for each transfer.

Bytes go through it by a copy within the GPU, which takes a hundredth of the drive's time. It can be
registered whatever allocator the tensors come from, and is so small that BAR1 has room for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from queue import SimpleQueue

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.cudadriver import CudaContext
from dcp_gds.io.gds import DeviceBytes
from dcp_gds.io.gdserror import is_lack_of_room, remedy_for

__all__ = ["SLOTS_DEFAULT", "SLOT_BYTES", "GdsSlot", "GdsWindow"]

# A drive reaches its bandwidth with pieces of 4 MiB and 8 of them in flight: 32 MiB, a fraction of
# the 256 MiB of BAR1 memory that the smallest GPUs have.
SLOT_BYTES = 4 << 20
SLOTS_DEFAULT = 8
# cuFile writes from addresses that are multiples of a GPU page without a bounce buffer.
_PAGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class GdsSlot:
    """`SLOT_BYTES` of the window: where it starts there, its address, and a stream for copies."""

    start: int
    address: int
    stream: int


class GdsWindow:
    """Registered memory of one GPU, until `close`; slots may be taken by any thread.

    Parameters
    ----------
    ordinal
        The GPU's number among those that this process sees.
    slots_max
        Slots to make. There are fewer where the GPU or cuFile has no room for so many.

    Raises
    ------
    UnsupportedError
        If there is no room for one slot, or cuFile refuses for another reason.
    OSError
        If the driver cannot make the streams.
    """

    def __init__(self, *, ordinal: int, slots_max: int = SLOTS_DEFAULT) -> None:
        assert slots_max > 0
        self._pid = os.getpid()
        self._free: SimpleQueue[GdsSlot] = SimpleQueue()
        with contextlib.ExitStack() as undo:
            self.context = CudaContext(ordinal=ordinal)
            undo.callback(self.context.close)
            self.memory = self._reserve(slots_max)
            self.slots = self.memory.length // SLOT_BYTES
            undo.callback(self._release)
            for index in range(self.slots):
                stream = self.context.new_stream()
                undo.callback(self.context.end_stream, stream)
                start = index * SLOT_BYTES
                self._free.put(GdsSlot(start, self.memory.address + start, stream))
            self._undo = undo.pop_all()

    def take(self) -> GdsSlot:
        """Return a slot, which the caller gives back; no more threads than slots may ask."""
        return self._free.get_nowait()

    def give_back(self, slot: GdsSlot) -> None:
        """Let others have a slot. Nothing may be in flight from or to it."""
        self._free.put(slot)

    def close(self) -> None:
        """Free the memory; no slot may be in use. May be called twice; nothing after a fork."""
        if os.getpid() == self._pid:
            self._undo.close()

    def _reserve(self, slots: int) -> DeviceBytes:
        """Allocate and register memory for as many slots as possible, half of them each time."""
        while True:
            try:
                return self._allocate(slots * SLOT_BYTES)
            except OSError as error:
                text = error.strerror or str(error)
                may_help = error.errno == errno.ENOMEM or is_lack_of_room(text)
                if slots == 1 or not may_help:
                    remedy = remedy_for(text) or "free memory of the GPU, or read cufile.log"
                    raise UnsupportedError(
                        f"{slots * SLOT_BYTES} bytes of GPU {self.context.ordinal} cannot be"
                        f" registered with cuFile: {text}; {remedy}"
                    ) from error
            slots //= 2

    def _allocate(self, length: int) -> DeviceBytes:
        """Allocate and register memory."""
        address = self.context.allocate(length)
        memory = DeviceBytes(address, length=length)
        try:
            assert address % _PAGE_BYTES == 0, f"the driver gave {address:#x}"
            with self.context.current():
                memory.register()
        except BaseException:
            self.context.free(address)
            raise
        return memory

    def _release(self) -> None:
        """Deregister and free the memory."""
        # It goes anyway, and whatever cuFile says then must not hide how a save ended.
        with contextlib.suppress(OSError), self.context.current():
            self.memory.deregister()
        with contextlib.suppress(OSError):
            self.context.free(self.memory.address)
