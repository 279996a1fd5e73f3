"""Facts: what a program saw that ran as a process of its own, or how it ended without a word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_gds.preflight import cufileprobe, nvmlprobe, probe, smartprobe

__all__ = ["Facts", "ask_cufile", "ask_nvml", "ask_smart", "probe_path", "run_child"]

# The whole check is to take less than 10 s when a mount hangs; a living drive needs a tenth of one.
PROBE_TIMEOUT_S = 4.0
# A first CUDA context takes seconds on a host with eight GPUs.
CUFILE_TIMEOUT_S = 20.0
NVML_TIMEOUT_S = 4.0
SMART_TIMEOUT_S = 2.0
# A process in an uninterruptible wait does not end when killed: it is not waited for longer.
KILL_TIMEOUT_S = 0.5
# What a probe prints is a few hundred bytes; a library may print more than it should.
OUTPUT_CHARACTERS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen; `failure` says how the program ended if it did not end well."""

    seen: Mapping[str, Any]
    failure: str = ""


def probe_path(path: str, *, write: bool, timeout_s: float = PROBE_TIMEOUT_S) -> Facts:
    """Look at a path, and write there if asked to."""
    return run_child(probe, path, "write" if write else "look", timeout_s=timeout_s)


def ask_cufile(
    path: str, *, library: str, properties: Mapping[str, Any], timeout_s: float = CUFILE_TIMEOUT_S
) -> Facts:
    """Write GPU memory to a directory and read it back through a libcufile, without compat mode.

    cuFile hangs, aborts and divides by zero on some hosts: never call it in one's own process.
    """
    return run_child(cufileprobe, path, library, json.dumps(dict(properties)), timeout_s=timeout_s)


def ask_nvml(*, timeout_s: float = NVML_TIMEOUT_S) -> Facts:
    """Ask the driver's management library about the GPUs and their BAR1 memory."""
    return run_child(nvmlprobe, timeout_s=timeout_s)


def ask_smart(controllers: Sequence[str], *, timeout_s: float = SMART_TIMEOUT_S) -> Facts:
    """Read the health log of NVMe controllers, such as "nvme0"."""
    return run_child(smartprobe, *controllers, timeout_s=timeout_s)


def run_child(module: Any, *arguments: str, timeout_s: float) -> Facts:
    """Run a module as a program by its file's name, and tell every way in which it can end."""
    command = [sys.executable, "-I", "-S", str(Path(module.__file__)), *arguments]
    # cuFile drops its log into the working directory: nothing can be made in /proc.
    child = subprocess.Popen(
        command,
        cwd="/proc",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    # On leaving, a Popen waits for ever: a child that cannot be killed is left to init instead.
    assert child.stdout is not None
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            child.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Facts({}, f"did not answer within {timeout_s:g} s and cannot be killed")
        finally:
            child.stdout.close()
        return Facts({}, f"did not answer within {timeout_s:g} s")
    seen = _parse(output)
    if child.returncode < 0:
        # A library may crash while the process ends, after all has been said.
        return Facts(seen or {}, f"was ended by {signal.Signals(-child.returncode).name}")
    if seen is None:
        return Facts({}, f"ended with status {child.returncode} and no answer")
    return Facts(seen)


def _parse(output: bytes) -> dict[str, Any] | None:
    """The object in the last line, where a program puts its answer; None if there is none."""
    lines = os.fsdecode(output[-OUTPUT_CHARACTERS_MAX:]).splitlines()
    try:
        seen = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return seen if isinstance(seen, dict) else None
