"""Runlog: a file of samples, saves and iterations, one JSON object a line."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcp_gds.errors import TransferError, UnsupportedError
from dcp_gds.hostmem.sample import Sample

__all__ = ["Iteration", "Run", "RunLog", "Save", "read_run"]

VERSION = 1
# A day at ten samples a second would be 864,000: what is read stays below a gigabyte of memory.
SAMPLES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Save:
    """A save in a run: from when to when, and what was said of it."""

    begin_s: float
    end_s: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration in a run: when it ended, how long it took, and whether a save overlapped it."""

    end_s: float
    seconds: float
    in_save: bool


@dataclass(slots=True)
class Run:
    """What a file holds; `skipped` counts lines that were cut off or are no records of ours."""

    path: Path
    host: Mapping[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    skipped: int = 0


class RunLog:
    """Appends records to a file, each in one write, so that what is there is whole but for the end.

    Raises
    ------
    TransferError
        If the file cannot be opened or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, interval_s: float) -> None:
        self._path = os.fspath(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
        except OSError as error:
            raise self._failed(error) from error
        self._write(
            "host",
            version=VERSION,
            time_s=time.monotonic(),
            unix_s=time.time(),
            interval_s=interval_s,
            name=platform.node(),
            kernel=platform.release(),
            pid=os.getpid(),
        )

    def sample(self, sample: Sample) -> None:
        """Append a sample."""
        self._write(
            "sample",
            time_s=round(sample.time_s, 6),
            counters=dict(sample.counters),
            gauges=dict(sample.gauges),
        )

    def save(self, save: Save) -> None:
        """Append a save that has ended."""
        self._write("save", begin_s=save.begin_s, end_s=save.end_s, facts=dict(save.facts))

    def iteration(self, iteration: Iteration) -> None:
        """Append an iteration."""
        self._write(
            "iteration",
            end_s=iteration.end_s,
            seconds=iteration.seconds,
            in_save=iteration.in_save,
        )

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _write(self, kind: str, **values: object) -> None:
        """Append one line."""
        line = json.dumps({"kind": kind, **values}, separators=(",", ":")) + "\n"
        try:
            os.write(self._descriptor, line.encode())
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> TransferError:
        """The error of this file."""
        return TransferError(error.errno or 0, error.strerror or str(error), self._path)


def read_run(path: Path) -> Run:
    """Read a file that a `RunLog` has written, however it ended.

    Lines that are cut off, as a killed process leaves them, are skipped and counted.

    Raises
    ------
    TransferError
        If the file cannot be read.
    UnsupportedError
        If no sample is in it.
    """
    run = Run(path)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                _take(run, line)
                if len(run.samples) >= SAMPLES_MAX:
                    break
    except OSError as error:
        raise TransferError(error.errno or 0, error.strerror or str(error), path) from error
    if not run.samples:
        raise UnsupportedError(
            f"{path} holds no samples; expected a file that `dcp-gds watch --jsonl` or"
            " HostMemoryWatch(jsonl=...) has written"
        )
    return run


def _take(run: Run, line: str) -> None:
    """Add one line to a run."""
    try:
        record = json.loads(line)
        match record["kind"]:
            case "host":
                run.host = record
            case "sample":
                run.samples.append(
                    Sample(
                        float(record["time_s"]),
                        dict(_numbers(record["counters"])),
                        dict(_numbers(record["gauges"])),
                    )
                )
            case "save":
                facts = dict(record["facts"])
                run.saves.append(Save(float(record["begin_s"]), float(record["end_s"]), facts))
            case "iteration":
                run.iterations.append(
                    Iteration(
                        float(record["end_s"]), float(record["seconds"]), bool(record["in_save"])
                    )
                )
            case _:
                run.skipped += 1
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        run.skipped += 1


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The items that are whole numbers; others raise ValueError."""
    for name, value in values.items():
        yield str(name), int(value)
