"""Stand-in: a program in fio's place that prints, fails or hangs as a test wants it to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

__all__ = ["ENGINES", "FIGURES", "install", "only_on_path"]

ENGINES = "Available IO engines:\n\tlibaio\n\tio_uring\n\tnull"
# What a job that moved 1 MiB in 250 ms says, as fio 3.33 does, shortened.
FIGURES = {
    "error": 0,
    "write": {"io_bytes": 1 << 20, "bw_bytes": 4 << 20, "runtime": 250},
    "read": {"io_bytes": 1 << 20, "bw_bytes": 4 << 20, "runtime": 250},
    "usr_cpu": 10.0,
    "sys_cpu": 30.0,
}


def install(
    directory: Path, *, job: str = "", version: str = "fio-0.stand-in", engines: str = ENGINES
) -> Path:
    """Write an executable `fio` into `directory`, which is made, and return the directory.

    Parameters
    ----------
    job
        What it does when it is to run a job: lines for a POSIX shell.
    """
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "fio"
    program.write_text(
        "#!/bin/sh\n"
        f"case $1 in\n--version) echo '{version}'; exit;;\n--enghelp) echo '{engines}'; exit;;\n"
        f"esac\n{job}\n"
    )
    program.chmod(0o755)
    return directory


def printing(document: object) -> str:
    """The line of a job that prints one job's result, with a note before it as fio has them."""
    return f"echo 'fio: a note'; echo '{json.dumps({'jobs': [document]})}'"


def only_on_path(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let `directory` be the whole search path: no other fio is found, nor /bin/sleep by name."""
    monkeypatch.setenv("PATH", str(directory))
