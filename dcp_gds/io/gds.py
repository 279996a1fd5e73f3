"""GDS: files and memory as cuFile knows them, through kvikio, and what kvikio counts of them.

Nothing is set here, neither in kvikio nor in cuFile, and cuFile's driver is not closed: both belong
to the whole process. cuFile opens its driver when the first file or memory is registered, which may
hang or abort: only after a child process has survived it (see gdsprobe).
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

import kvikio
import kvikio.cufile_driver
import kvikio.defaults

from dcp_gds.io.gdserror import gds_error

__all__ = [
    "DeviceBytes",
    "GdsCounts",
    "GdsFile",
    "GdsMonitor",
    "compat_mode",
    "open_driver_for_trial",
]


class DeviceBytes:
    """`length` bytes of a GPU's memory from `address` on, for kvikio; whoever made it keeps them.

    kvikio is never given a tensor: it refuses those with gradients, and some dtypes.
    """

    def __init__(self, address: int, *, length: int) -> None:
        self.address = address
        self.length = length

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self.length,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }

    def register(self) -> None:
        """Pin the allocation that holds the bytes, so that the drive can reach it.

        Raises
        ------
        OSError
            If cuFile refuses; `remedy_for` knows what to do.
        """
        try:
            kvikio.memory_register(self)
        except RuntimeError as error:
            raise gds_error(error) from error

    def deregister(self) -> None:
        """Undo `register`; OSError if cuFile does not know the memory."""
        try:
            kvikio.memory_deregister(self)
        except RuntimeError as error:
            raise gds_error(error) from error


class GdsFile:
    """A file that is registered with cuFile until `close`, after which it refuses to be used.

    The file is there already and keeps its length. Calls need a GPU to be the thread's current one.

    Parameters
    ----------
    fd
        A descriptor of the file, which is opened anew through it: no other file can have taken its
        place. Stays the caller's.
    writable
        Whether it may be written.

    Raises
    ------
    OSError
        If it cannot be opened or registered.
    """

    def __init__(self, fd: int, *, writable: bool) -> None:
        # "w" would cut a file that has been preallocated.
        try:
            self._file = kvikio.CuFile(f"/proc/self/fd/{fd}", "r+" if writable else "r")
        except RuntimeError as error:
            raise gds_error(error) from error
        # A forked child may not use cuFile, but kvikio's destructor would, when the child forgets
        # the file or its collector does: one reference more keeps it from running, until `close`.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._file))
        self._pid = os.getpid()

    def write(self, source: DeviceBytes, start: int, *, length: int, offset: int) -> int:
        """Write `length` of the bytes from `start` on; returns how many were written.

        It may be fewer, without an error: the rest of the extent is then what it was. kvikio waits
        for the NULL stream first. OSError if it fails.
        """
        self._check_usable()
        try:
            return int(self._file.raw_write(source, length, offset, start))
        except RuntimeError as error:
            raise gds_error(error) from error

    def read(self, target: DeviceBytes, start: int, *, length: int, offset: int) -> int:
        """Read into the bytes from `start` on; returns how many came, fewer at the file's end."""
        self._check_usable()
        try:
            return int(self._file.raw_read(target, length, offset, start))
        except RuntimeError as error:
            raise gds_error(error, reading=True) from error

    def close(self) -> None:
        """Deregister and close. May be called twice; a forked child only forgets the file."""
        if os.getpid() != self._pid or self._file.closed:
            return
        self._file.close()
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._file))

    def _check_usable(self) -> None:
        """Refuse what cuFile would crash of, or take for another file."""
        if os.getpid() != self._pid:
            raise RuntimeError("the file was registered before this process was forked")
        if self._file.closed:
            raise RuntimeError("the file is closed")


@dataclass(frozen=True, slots=True)
class GdsCounts:
    """Bytes that the process moved through kvikio, by cuFile and by POSIX calls."""

    cufile: int
    posix: int


class GdsMonitor:
    """What kvikio has counted since this was made, in the whole process."""

    def __init__(self) -> None:
        self._monitor = kvikio.SummaryMonitor()

    def counts(self) -> GdsCounts:
        """Read the counts."""
        backends = self._monitor.get().by_backend
        return GdsCounts(
            cufile=backends["GDS"]["bytes_transferred"],
            posix=backends["POSIX"]["bytes_transferred"],
        )

    def close(self) -> None:
        """Stop counting."""
        self._monitor.stop()


def compat_mode() -> str:
    """kvikio's compat mode: "OFF", "ON" or "AUTO"."""
    return str(kvikio.defaults.get("compat_mode").name)


def open_driver_for_trial() -> bool:
    """Open cuFile's driver; whether cuFile may use its own compat mode then. For a probe's child.

    Other processes leave it to cuFile to open its driver when it is first used.

    Raises
    ------
    OSError
        If the driver cannot be opened.
    """
    try:
        kvikio.cufile_driver.driver_open()
        return bool(kvikio.cufile_driver.get("allow_compat_mode"))
    except RuntimeError as error:
        raise gds_error(error) from error
