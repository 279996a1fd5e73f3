"""Fio: the flexible I/O tester, which knows nothing of us, as a measure of the drive."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_gds.benchmark.measure import Clocks
from dcp_gds.benchmark.setting import Moved, Setting
from dcp_gds.errors import TransferError
from dcp_gds.io.fileerror import file_error, transfer_error

__all__ = ["FIO", "INSTALL", "Fio", "find_fio"]

FIO = "fio"
INSTALL = "install it for a measure that is not ours: `apt install fio`, `dnf install fio`"
# A drive slower than that is broken, and a run must end.
BYTES_PER_S_MIN = 20e6
START_S_MAX = 60.0
# Of what fio printed, in an error of one line.
SAID_MAX = 200
ENGINES = ("io_uring", "libaio")
# The engine for GPU memory, once by cuFile and once through host memory: fio's `cuda_io`.
GPU_ENGINE = "libcufile"
GPU_WAYS = ("cufile", "posix")


@dataclass(frozen=True, slots=True)
class Fio:
    """A program found on the search path, its version, and those of its engines that we use."""

    program: str
    version: str
    engines: tuple[str, ...]

    name = FIO

    def write(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        """Make a file of `length` bytes, preallocated, and sync it.

        The seconds are fio's own, from the first write until the fsync is done (its backend.c: the
        run time is taken behind the fsync of `end_fsync`; one that was held up for 3 s was in it,
        by libaio and by psync). Preallocating is not in them. Those of the process are up to half a
        second more: fio maps its statistics, calibrates its clock, sleeps 100 ms for each job to
        start, and fills its buffers, which all is nothing of the drive's.

        Raises
        ------
        TransferError
            If fio fails, with the errno and text that it gave, prints no result, or does not end;
            StorageFullError if there is no room.
        """
        return self._run(path, setting, "write", "--end_fsync=1", length=length, direct=direct)

    def read(self, path: Path, setting: Setting, *, length: int, direct: bool) -> Moved:
        """Read the first `length` bytes of a file; raises as `write` does."""
        options = ("--allow_file_create=0", "--invalidate=1")
        return self._run(path, setting, "read", *options, length=length, direct=direct)

    def _run(
        self, path: Path, setting: Setting, what: str, *options: str, length: int, direct: bool
    ) -> Moved:
        """Run one job and read its result."""
        engine, _, way = setting.engine.partition("/")
        # A thread: a process of the job's own would go on writing when fio is killed. And without
        # the directory, for fio ends a file's name at a colon.
        command = [
            *(self.program, "--name=bench", "--thread", f"--filename={path.name}", f"--rw={what}"),
            *(f"--bs={setting.block_bytes}", f"--iodepth={setting.depth}", f"--size={length}"),
            *(f"--direct={int(direct)}", f"--ioengine={engine}", "--output-format=json", *options),
        ]
        if way:
            command += ["--gpu_dev_ids=0", f"--cuda_io={way}"]
        limit_s = START_S_MAX + length / BYTES_PER_S_MIN
        try:
            done = _call(*command, limit_s=limit_s, cwd=path.parent)
        except subprocess.TimeoutExpired as error:
            raise TransferError(
                errno.ETIMEDOUT, f"fio ({setting}) did not end within {limit_s:.0f} s", path
            ) from error
        except OSError as error:
            raise file_error(error, Path(self.program)) from error
        job = _job(done.stdout)
        if done.returncode or job.get("error", 1):
            raise _failure(done, job, path, setting)
        return _moved(job, what, length=length, path=path)


def find_fio(*, gpu: bool) -> Fio | None:
    """Return the fio on the search path, or None.

    Parameters
    ----------
    gpu
        Whether there is a GPU for its cuFile engine, which not every fio has.
    """
    program = shutil.which(FIO)
    if program is None:
        return None
    # The search path may have relative directories, and fio runs in that of its file.
    program = str(Path(program).absolute())
    version, engines = _say(program, "--version"), _say(program, "--enghelp").split()
    found = [engine for engine in ENGINES if engine in engines]
    if gpu and GPU_ENGINE in engines:
        found += [f"{GPU_ENGINE}/{way}" for way in GPU_WAYS]
    return Fio(program, version, tuple(found))


def _say(program: str, option: str) -> str:
    """What fio prints for an option; nothing if it cannot be run."""
    try:
        return _call(program, option, limit_s=START_S_MAX).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _call(
    *command: str, limit_s: float, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run fio; what it prints is text, whatever it is. It has ended when this returns or raises."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=cwd,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except BaseException:
            # After a Ctrl-C subprocess.run() would not wait, and its file be removed meanwhile.
            process.kill()
            process.wait()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _job(output: str) -> dict[str, Any]:
    """The job in fio's JSON, behind whatever notes stand before it; empty if there is none."""
    try:
        document = json.loads(output[output.index("{") :])
        job = document["jobs"][0]
    except (ValueError, KeyError, IndexError, TypeError):
        return {}
    return job if isinstance(job, dict) else {}


def _moved(job: dict[str, Any], what: str, *, length: int, path: Path) -> Moved:
    """Seconds and CPU seconds of a job; its shares of CPU time are in percent of its run time."""
    try:
        # Whole milliseconds, rounded up; fio's own rates are made of the same ones.
        moved, seconds = job[what]["io_bytes"], job[what]["runtime"] / 1000
        cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds
    except (KeyError, TypeError) as error:
        raise TransferError(errno.EIO, f"fio's result has no figures: {error!r}", path) from error
    if moved != length or seconds <= 0:
        raise TransferError(
            errno.EIO, f"fio moved {moved} of {length} bytes in {seconds:g} s", path
        )
    return Moved(length, Clocks(seconds, cpu_s, machine_cpu_s=None))


def _failure(
    done: subprocess.CompletedProcess[str], job: dict[str, Any], path: Path, setting: Setting
) -> TransferError:
    """What fio said when it failed: the errno of its job, or the first line that it printed."""
    number = job.get("error")
    if isinstance(number, int) and number > 0:
        reason = os.strerror(number)
    else:
        number = errno.EIO
        said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
        reason = f"status {done.returncode}, and it printed {said[:SAID_MAX]!r}"
    return transfer_error(number, f"fio ({setting}) failed: {reason}", path)
