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

from dcp_gds.benchmark.setting import Moved, Setting
from dcp_gds.errors import TransferError

__all__ = ["FIO", "INSTALL", "Fio", "find_fio"]

FIO = "fio"
INSTALL = "install it for a measure that is not ours: `apt install fio`, `dnf install fio`"
# A drive slower than that is broken, and a run must end.
BYTES_PER_S_MIN = 20e6
START_S_MAX = 60.0
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

        The seconds are fio's own, from the first write until the fsync is done. Those of the
        process are up to half a second more: fio maps its statistics, calibrates its clock, sleeps
        100 ms for each job to start, and fills its buffers, which all is nothing of the drive's.

        Raises
        ------
        TransferError
            If fio fails, with the errno and text that it gave.
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
        command = [
            *(self.program, "--name=bench", f"--filename={path}", f"--rw={what}"),
            *(f"--bs={setting.block_bytes}", f"--iodepth={setting.depth}", f"--size={length}"),
            *(f"--direct={int(direct)}", f"--ioengine={engine}", "--output-format=json", *options),
        ]
        if way:
            command += ["--thread", "--gpu_dev_ids=0", f"--cuda_io={way}"]
        limit_s = START_S_MAX + length / BYTES_PER_S_MIN
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired as error:
            raise TransferError(
                errno.ETIMEDOUT, f"fio did not end within {limit_s:.0f} s", path
            ) from error
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
    version, engines = _say(program, "--version"), _say(program, "--enghelp").split()
    found = [engine for engine in ENGINES if engine in engines]
    if gpu and GPU_ENGINE in engines:
        found += [f"{GPU_ENGINE}/{way}" for way in GPU_WAYS]
    return Fio(program, version, tuple(found))


def _say(program: str, option: str) -> str:
    """What fio prints for an option; nothing if it cannot be run."""
    try:
        done = subprocess.run(
            [program, option], check=False, capture_output=True, text=True, timeout=START_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _job(output: str) -> dict[str, Any]:
    """The job in fio's JSON, behind whatever notes stand before it; empty if there is none."""
    try:
        document = json.loads(output[output.index("{") :])
        job: dict[str, Any] = document["jobs"][0]
    except (ValueError, KeyError, IndexError):
        return {}
    return job


def _moved(job: dict[str, Any], what: str, *, length: int, path: Path) -> Moved:
    """Seconds and CPU seconds of a job; its shares of CPU time are in percent of its run time."""
    moved = job[what]["io_bytes"]
    if moved != length:
        raise TransferError(errno.EIO, f"fio moved {moved:,} of {length:,} bytes", path)
    # Milliseconds are too coarse for short runs, so the rate, which fio takes in microseconds.
    seconds = length / job[what]["bw_bytes"]
    return Moved(length, seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds)


def _failure(
    done: subprocess.CompletedProcess[str], job: dict[str, Any], path: Path, setting: Setting
) -> TransferError:
    """What fio said when it failed: the first line of its complaint."""
    number = int(job.get("error") or 0)
    said = done.stderr.strip() or done.stdout.strip().partition("\n")[0]
    reason = os.strerror(number) if number else f"status {done.returncode}: {said[:200]}"
    return TransferError(number or errno.EIO, f"fio ({setting}) failed: {reason}", path)
