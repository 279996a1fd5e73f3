"""Bench: the command that measures a drive, and what saves and loads reach of it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.units import parse_bytes

if TYPE_CHECKING:
    from dcp_gds.benchmark.session import Session

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Measure what the drive below a directory can do, by fio and by a bare writer of our own,"
        " and how much of it GDSWriter, GDSReader and stock DCP reach. Everything is made durable;"
        " contenders take turns; nothing is left behind in the directory. Writes NAME.json and"
        " NAME.png."
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a directory on the drive")
    parser.add_argument(
        "--quick", action="store_true", help="less than two minutes: 512 MiB, 3 rounds"
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="past a drive's own cache: 64 GiB, or a sixth of what is free; takes an hour",
    )
    parser.add_argument("--size", metavar="BYTES", help="bytes of a checkpoint (4GiB)")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each contender (7)")
    parser.add_argument(
        "--allow-cached",
        action="store_true",
        help="measure even host memory, or where direct I/O is not honoured",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("dcp-gds-bench"),
        metavar="NAME",
        help="writes NAME.json and NAME.png (dcp-gds-bench)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print tables, write both files, and return 0."""
    from dcp_gds.benchmark.fio import find_fio
    from dcp_gds.benchmark.result import document_of
    from dcp_gds.benchmark.scope import choose_scope
    from dcp_gds.benchmark.session import measure
    from dcp_gds.benchmark.target import look_at
    from dcp_gds.cli.benchtable import print_session

    target = look_at(arguments.path, allow_cached=arguments.allow_cached)
    scope = choose_scope(
        target,
        quick=arguments.quick,
        thorough=arguments.thorough,
        length=None if arguments.size is None else parse_bytes(arguments.size, name="--size"),
        rounds=arguments.rounds,
    )
    _check_output(arguments.output)
    fio = find_fio(gpu=Path("/proc/driver/nvidia/version").exists())
    load = os.getloadavg()[0]
    progress = Console(stderr=True, markup=False, highlight=False)
    with _ended_by_sigterm():
        session = measure(target, scope, fio=fio, say=progress.print)
    document = document_of(target, scope, session, fio=fio, load=load)
    print_session(document, session, scope)
    for path in _write(arguments.output, document, session):
        sys.stdout.write(f"{path}\n")
    return 0


def _check_output(output: Path) -> None:
    """Make sure, before an hour of measuring, that its result can be written."""
    directory = output.absolute().parent
    if not output.name or not directory.is_dir():
        raise ConfigError(f"--output is {output}; expected a file name in a directory")
    if not os.access(directory, os.W_OK):
        raise ConfigError(f"--output is {output}; expected a directory that can be written to")


def _write(output: Path, document: dict[str, object], session: Session) -> Iterator[Path]:
    """Write the document, and the picture where it can be drawn."""
    from dcp_gds.cli.benchfigure import draw

    content = json.dumps(document, indent=1).encode() + b"\n"
    yield _put(output.with_name(f"{output.name}.json"), content)
    try:
        picture = draw(session)
    except ConfigError as error:
        # Hours of measuring are not thrown away for a picture.
        sys.stdout.write(f"no picture: {error}\n")
        return
    yield _put(output.with_name(f"{output.name}.png"), picture)


def _put(path: Path, content: bytes) -> Path:
    """Write a file."""
    from dcp_gds.io.fileerror import file_error

    try:
        path.write_bytes(content)
    except OSError as error:
        raise file_error(error, path) from error
    return path


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the block as SIGINT does, or the files that it has made would stay."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
