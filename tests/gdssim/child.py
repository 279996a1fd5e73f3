"""Child: a fresh process with the simulator loaded, in which a function of a test module runs.

The libraries are preloaded, so that a process which the child starts, such as a probe, has them.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

from tests.gdssim.build import Libraries
from tests.gdssim.fault import Fault
from tests.gdssim.simulator import Simulator

__all__ = ["ChildError", "Machine", "run_in_child"]

# Loading torch and kvikio takes seconds on a busy machine; only a hang comes near this.
LIMIT_S = 300.0
ROOT = Path(__file__).parents[2]

T = TypeVar("T")
P = ParamSpec("P")


class ChildError(Exception):
    """The child ended without a result, or raised what cannot be pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the simulator shows to a process.

    Parameters
    ----------
    deferred
        Work in streams runs only when something waits for it.
    nvfs
        Whether cuFile reports an nvidia-fs driver.
    faults
        In force from the start, in the child and in every process that it starts.
    environment
        Further variables, such as KVIKIO_COMPAT_MODE, which is OFF unless named here.
    """

    libraries: Libraries
    devices: int = 1
    arena_mib: int = 1024
    deferred: bool = False
    nvfs: bool = True
    faults: Sequence[Fault] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        """Return the whole environment of a process on this machine."""
        return {
            **os.environ,
            "LD_PRELOAD": f"{self.libraries.cuda} {self.libraries.cufile}",
            "GDSSIM_DEVICES": str(self.devices),
            "GDSSIM_ARENA_MIB": str(self.arena_mib),
            "GDSSIM_DEFER": str(int(self.deferred)),
            "GDSSIM_NVFS": str(int(self.nvfs)),
            "GDSSIM_FAULTS": "".join(fault.as_text() for fault in self.faults),
            "KVIKIO_COMPAT_MODE": "OFF",
            **self.environment,
        }


def run_in_child(
    machine: Machine,
    target: Callable[Concatenate[Simulator, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call `target(simulator, ...)` in a new process, and return its result or raise its error.

    `target` is a function of an importable module that imports kvikio inside functions only; the
    arguments and the result are pickled.
    """
    request = pickle.dumps((machine.libraries, target, args, kwargs))
    # A file, not a pipe: a large result would fill the pipe while nobody reads it.
    with tempfile.TemporaryFile() as results:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", __name__, str(results.fileno())],
            input=request,
            stderr=subprocess.PIPE,
            pass_fds=[results.fileno()],
            cwd=ROOT,
            env=machine.variables(),
            timeout=LIMIT_S,
            check=False,
        )
        results.seek(0)
        outcome = results.read()
    if not outcome:
        raise ChildError(f"exit status {done.returncode}: {done.stderr.decode(errors='replace')}")
    value, error, trace = pickle.loads(outcome)
    if error is not None:
        error.add_note(trace)
        raise error
    return cast(T, value)


def _serve(descriptor: int) -> None:
    """Run the request that stands on stdin, and write the outcome to the descriptor."""
    # All of stdin is read first: what the function does to descriptor 0 is its own affair.
    request = sys.stdin.buffer.read()
    libraries, target, args, kwargs = pickle.loads(request)
    value, error, trace = None, None, ""
    try:
        value = target(Simulator(libraries), *args, **kwargs)
    except Exception as raised:  # noqa: BLE001 - it is raised again in the test
        error, trace = raised, traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(raised))
        except Exception:  # noqa: BLE001 - pickling runs foreign code
            error = ChildError(repr(raised))
    with os.fdopen(descriptor, "wb") as results:
        pickle.dump((value, error, trace), results)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
