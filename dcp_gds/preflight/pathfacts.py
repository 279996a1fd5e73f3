"""PathFacts: what the probe saw of a path, or how it ended without a word."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_gds.preflight import probe

__all__ = ["PathFacts", "probe_path"]

# The whole check is to take less than 10 s when a mount hangs; a living drive needs a tenth of one.
PROBE_TIMEOUT_S = 5.0
# A process in an uninterruptible wait does not end when killed: it is not waited for longer.
KILL_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class PathFacts:
    """What was seen; `failure` says how the probe ended if it said nothing."""

    seen: dict[str, Any]
    failure: str = ""


def probe_path(path: str, *, write: bool, timeout_s: float = PROBE_TIMEOUT_S) -> PathFacts:
    """Look at a path in a process of its own, and write there if asked to."""
    mode = "write" if write else "look"
    command = [sys.executable, "-I", "-S", str(Path(probe.__file__)), path, mode]
    return _run(command, timeout_s=timeout_s)


def _run(command: list[str], *, timeout_s: float) -> PathFacts:
    """Run a program that prints JSON, and tell every way in which it can end."""
    # On leaving, a Popen waits for ever: a child that cannot be killed is left to init instead.
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            child.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return PathFacts({}, f"did not answer within {timeout_s:g} s and cannot be killed")
        finally:
            child.stdout.close()
        return PathFacts({}, f"did not answer within {timeout_s:g} s")
    if child.returncode < 0:
        return PathFacts({}, f"was ended by {signal.Signals(-child.returncode).name}")
    try:
        seen = json.loads(output)
    except ValueError:
        return PathFacts({}, f"ended with status {child.returncode} and no answer")
    return PathFacts(seen)
