"""GDS probe's child: a program that moves GPU memory to or from a file by cuFile, as a trial.

cuFile's driver may hang, abort, or end a process otherwise when it opens: this one has nothing to
lose. It prints a line of JSON before each stage, and one for the outcome.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.gdserror import remedy_for

if TYPE_CHECKING:
    from dcp_gds.io.gds import GdsFile
    from dcp_gds.io.gdswindow import GdsWindow

__all__ = ["TRIAL_BYTES", "main"]

# A few requests' worth of cuFile's, and over in a moment.
TRIAL_BYTES = 1 << 20
_UDEV = "/run/udev"


class _FailedError(Exception):
    """The trial failed, for a reason that stands in the message."""


def main(path: str, *, write: bool, ordinal: int) -> None:
    """Try `path`: an existing file of `TRIAL_BYTES` to write over, or any file to read."""
    try:
        reason = _try(path, write=write, ordinal=ordinal)
        _say(works=True, reason=reason)
    except (_FailedError, UnsupportedError) as error:
        _say(works=False, reason=str(error))
    except OSError as error:
        text = error.strerror or str(error)
        remedy = remedy_for(text) or "run `gdscheck PATH`, and read cufile.log"
        _say(works=False, reason=f"{text}; {remedy}")


def _try(path: str, *, write: bool, ordinal: int) -> str:
    """Move bytes and say what was seen."""
    # Here, because each import may fail, and the outcome is to say so.
    from dcp_gds.io.cudadriver import load_driver  # noqa: PLC0415

    _say(stage="the CUDA driver")
    load_driver()
    _say(stage="the import of kvikio")
    try:
        from dcp_gds.io import gds  # noqa: PLC0415
        from dcp_gds.io.gdswindow import GdsWindow  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise _FailedError(
            f"{error.name} is not installed: pip install 'dcp-gds[cu12]' or 'dcp-gds[cu13]', by the"
            " CUDA version of torch"
        ) from error
    except (ImportError, RuntimeError, OSError) as error:
        # kvikio looks for libcufile when it is imported.
        raise _FailedError(
            f"kvikio cannot be imported: {_first_line(error)}; install libcufile, which is pip's"
            " nvidia-cufile (with dcp-gds[cu12] or [cu13]) or the package gds-tools"
        ) from error
    mode = gds.compat_mode()
    _check_mode(mode)
    _say(stage="cuFile's driver open")
    if gds.open_driver_for_trial():
        raise _FailedError(
            "cuFile keeps its own compat mode although its settings forbid it, so what it does here"
            " proves nothing; see whether CUFILE_ALLOW_COMPAT_MODE is set"
        )
    _say(stage="the registration of GPU memory")
    monitor = gds.GdsMonitor()
    window = GdsWindow(ordinal=ordinal, slots_max=1)
    fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)
    with window.context.current():
        _say(stage="the registration of a file")
        file = gds.GdsFile(fd, writable=write)
        _say(stage="a transfer")
        moved = _move(file, window, fd, write=write)
        file.close()
    window.close()
    counts = monitor.counts()
    if counts != gds.GdsCounts(cufile=moved, posix=0):
        raise _FailedError(
            f"kvikio (compat mode {mode}) moved {counts.posix} of {moved} bytes by POSIX calls and"
            f" {counts.cufile} by cuFile; set KVIKIO_COMPAT_MODE=OFF to see why"
        )
    return f"{moved} bytes went between GPU {ordinal} and the drive by cuFile, unchanged"


def _check_mode(mode: str) -> None:
    """Refuse kvikio's settings by which it would not use cuFile at all."""
    if mode == "ON":
        raise _FailedError("kvikio's compat mode is ON: unset KVIKIO_COMPAT_MODE, or set it to OFF")
    if mode == "AUTO" and not os.access(_UDEV, os.R_OK):
        raise _FailedError(
            f"{_UDEV} cannot be read, so kvikio's compat mode AUTO does not use cuFile: in a"
            f" container add `-v {_UDEV}:{_UDEV}:ro`, or set KVIKIO_COMPAT_MODE=OFF"
        )


def _move(file: GdsFile, window: GdsWindow, fd: int, *, write: bool) -> int:
    """Move the trial's bytes, compare them, and return how many were moved."""
    memory = window.memory
    moved = 0
    if write:
        data = os.urandom(TRIAL_BYTES)
        window.context.upload(data, target=memory.address)
        moved = file.write(memory, 0, length=TRIAL_BYTES, offset=0)
        _compare("written", moved, TRIAL_BYTES)
    data = os.pread(fd, TRIAL_BYTES, 0)
    if not data:
        raise _FailedError("the file is empty: there is nothing to try to read")
    # To another place: that it is unchanged must not mean that nothing was read.
    came = file.read(memory, TRIAL_BYTES, length=TRIAL_BYTES, offset=0)
    _compare("read", came, len(data))
    if window.context.download(memory.address + TRIAL_BYTES, length=came) != data:
        raise _FailedError("the bytes came back other than they are in the file")
    if write and window.context.download(memory.address, length=came) != data:
        raise _FailedError("the bytes in the file are other than those that were written")
    return moved + came


def _compare(verb: str, moved: int, length: int) -> None:
    """Refuse a short transfer."""
    if moved != length:
        raise _FailedError(f"cuFile says that {moved} of {length} bytes were {verb}")


def _first_line(error: BaseException) -> str:
    """An error's text may be a page long."""
    return (str(error).strip().splitlines() or [repr(error)])[0]


def _say(**what: object) -> None:
    """Print a line, at once: this process may not live to print another."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], write=sys.argv[2] == "write", ordinal=int(sys.argv[3]))
    # cuFile's driver may crash or hang where it is closed at the end of a process.
    os._exit(0)
