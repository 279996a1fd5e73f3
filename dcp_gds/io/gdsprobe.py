"""GDS probe: whether cuFile moves GPU memory to and from a path, tried by a child process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_gds.io.gdsprobechild import TRIAL_BYTES
from dcp_gds.io.shardfile import create_shard_file, remove_file
from dcp_gds.preflight.cufilejson import (
    SETTINGS_DEFAULT,
    SETTINGS_VARIABLE,
    parse_settings,
    without_compat,
)

__all__ = ["PROBE_LIMIT_S", "GdsVerdict", "probe_directory", "probe_file"]

# cuFile's driver takes seconds to open on a node with many GPUs and drives. One that does not open
# at all spins for ever.
PROBE_LIMIT_S = 60.0
# A killed process that does not end waits in the kernel for a drive: it is left behind.
_KILL_LIMIT_S = 5.0
# By these cuFile's users switch its own compat mode on for everything.
_FORCE_VARIABLE = "CUFILE_FORCE_COMPAT_MODE"
_ALLOW_VARIABLE = "CUFILE_ALLOW_COMPAT_MODE"


@dataclass(frozen=True, slots=True)
class GdsVerdict:
    """Whether GPUDirect Storage works on a path.

    Parameters
    ----------
    works
        GPU memory went there and back by cuFile, its own compat mode forbidden.
    reason
        What was seen, as one sentence that names the path; where it does not work, what to do too.
    """

    works: bool
    reason: str


class _NoProbeError(Exception):
    """The child need not be started: what it would say is known."""


def probe_directory(
    directory: Path,
    *,
    ordinal: int,
    environment: Mapping[str, str] | None = None,
    limit_s: float = PROBE_LIMIT_S,
) -> GdsVerdict:
    """Try to write GPU memory to a file in `directory` and to read it back; the file is removed.

    cuFile's driver is opened in the child only, with the settings of this process but for its
    compat mode, which is forbidden. stdin is not the child's.

    Parameters
    ----------
    directory
        Where direct I/O is honoured.
    ordinal
        The GPU's number among those that this process sees.
    environment
        The child's, instead of this process's.
    limit_s
        The child is killed after so many seconds.

    Raises
    ------
    TransferError
        If no file can be made there.
    """
    path = directory / f".dcp_gds-probe-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        with create_shard_file(path, direct=True) as file:
            file.allocate(TRIAL_BYTES)
        trial = _Trial(path, directory, write=True, ordinal=ordinal, limit_s=limit_s)
        return _judge(trial, environment)
    finally:
        remove_file(path)


def probe_file(
    path: Path,
    *,
    ordinal: int,
    environment: Mapping[str, str] | None = None,
    limit_s: float = PROBE_LIMIT_S,
) -> GdsVerdict:
    """Try to read the begin of the file `path` to GPU memory. Nothing is written."""
    trial = _Trial(path, path, write=False, ordinal=ordinal, limit_s=limit_s)
    return _judge(trial, environment)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What the child shall do: with the file `path`, on account of the path `about`."""

    path: Path
    about: Path
    write: bool
    ordinal: int
    limit_s: float


def _judge(trial: _Trial, environment: Mapping[str, str] | None) -> GdsVerdict:
    """Run the child, and make a verdict of what it said or how it ended."""
    variables = dict(os.environ if environment is None else environment)
    try:
        with tempfile.TemporaryDirectory(prefix="dcp_gds-probe-") as place:
            works, reason = _run(trial, Path(place), variables)
    except _NoProbeError as error:
        works, reason = False, str(error)
    except OSError as error:
        # Out of processes or of memory, or no room for the settings.
        works, reason = False, f"the probe could not be started: {error}; free what is lacking"
    verb = "works" if works else "does not work"
    return GdsVerdict(works, f"GPUDirect Storage {verb} on {trial.about}: {reason}")


def _run(trial: _Trial, place: Path, variables: dict[str, str]) -> tuple[bool, str]:
    """Run the child in an empty directory: cuFile leaves its log where it runs."""
    settings = place / "cufile.json"
    text = without_compat(_settings(variables), log_directory=str(place))
    settings.write_text(text, encoding="utf-8")
    variables |= {SETTINGS_VARIABLE: str(settings), _ALLOW_VARIABLE: "false"}
    # It finds what this process has found, however that was started.
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    program = [sys.executable, "-m", "dcp_gds.io.gdsprobechild"]
    mode = "write" if trial.write else "read"
    said, complained = place / "stdout", place / "stderr"
    with said.open("wb") as stdout, complained.open("wb") as stderr:
        # No `with` block of its own: its end would wait for the child for ever.
        child = subprocess.Popen(
            [*program, str(trial.path.absolute()), mode, str(trial.ordinal)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=place,
            env=variables,
            start_new_session=True,
        )
        status = _wait(child, trial.limit_s)
    lines = [json.loads(line) for line in said.read_text(encoding="utf-8").splitlines()]
    if lines and "works" in lines[-1]:
        return bool(lines[-1]["works"]), str(lines[-1]["reason"])
    stage = lines[-1]["stage"] if lines else "the start of Python"
    last = complained.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return False, f"{stage} {_end(status, trial.limit_s)}{''.join(f' ({line})' for line in last)}"


def _wait(child: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Wait for the child; None if it had to be killed."""
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        # With all that it has started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_LIMIT_S)
    return None


def _end(status: int | None, limit_s: float) -> str:
    """How a child ended that did not say what it saw, and what to do."""
    if status is None:
        how = f"did not end within {limit_s:g} s"
    elif status < 0:
        how = f"ended the process by {signal.Signals(-status).name}"
    else:
        how = f"ended the process with exit status {status}"
    return f"{how}: run `gdscheck PATH`, and read cufile.log"


def _settings(variables: Mapping[str, str]) -> dict[str, Any]:
    """cuFile's settings of this process."""
    if variables.get(_FORCE_VARIABLE, "").lower() in {"1", "true", "yes", "on"}:
        raise _NoProbeError(
            f"cuFile's compat mode is forced by {_FORCE_VARIABLE}, and it bounces in host memory:"
            " unset it"
        )
    name = variables.get(SETTINGS_VARIABLE, SETTINGS_DEFAULT)
    try:
        settings = parse_settings(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _NoProbeError(f"{name} cannot be read: {error}; mend it") from error
    if settings.get("properties", {}).get("force_compat_mode") is True:
        raise _NoProbeError(
            f"cuFile's compat mode is forced by force_compat_mode in {name}, and it bounces in host"
            " memory: set it to false"
        )
    return settings
