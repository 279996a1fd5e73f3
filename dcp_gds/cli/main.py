"""Main: the entry point of `dcp-gds`, which finds the command and turns errors into one line."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from rich.console import Console

import dcp_gds
from dcp_gds.errors import DcpGdsError

__all__ = ["main"]

PROGRAM = "dcp-gds"
# argparse ends with 2 for a wrong option, too: both mean that nothing useful came out.
EXIT_ERROR = 2
# What a shell reports for a program that SIGINT or SIGPIPE ended: 128 + the signal's number.
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand, and the module that is imported only when it is asked for."""

    name: str
    help: str
    module: str


class CommandModule(Protocol):
    """What the module of a command offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Describe the command and its options."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit status."""


# Most commands need torch, whose import takes seconds and which some nodes lack: `--help` and the
# commands that do not need it must not wait for it.
COMMANDS = (
    Command("check", "tell how this node writes to a path", "dcp_gds.cli.check"),
    Command("ls", "list what a checkpoint holds", "dcp_gds.cli.ls"),
    Command("verify", "check a checkpoint for damage", "dcp_gds.cli.verify"),
    Command("watch", "watch the host's memory while it trains", "dcp_gds.cli.watch"),
    Command("sysctl", "show and set the kernel's memory settings", "dcp_gds.cli.sysctl"),
    Command("plan", "size host memory for a state", "dcp_gds.cli.plan"),
    Command("report", "draw recorded runs as a page", "dcp_gds.cli.report"),
    Command("bench", "measure a drive, and what saves and loads reach", "dcp_gds.cli.bench"),
    Command("demo", "train, get killed, resume: with measured saves", "dcp_gds.cli.demo"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dcp-gds` and return its exit status.

    An error that dcp_gds raises on purpose is one line on stderr and status 2; a traceback means
    a bug.

    Parameters
    ----------
    argv
        The arguments without the program's name; None for the process's own.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser, modules = _build_parser(words)
    try:
        arguments = parser.parse_args(words)
        status = modules[arguments.command].run(arguments)
        # A closed pipe shows only when the buffer is written, which is too late at exit.
        sys.stdout.flush()
    except DcpGdsError as error:
        _complain(error)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return EXIT_BROKEN_PIPE
    return status


class _VersionAction(argparse.Action):
    """Prints the version; looking it up takes longer than parsing, so only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        try:
            version = dcp_gds.__version__
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed, version unknown)"
        sys.stdout.write(f"{PROGRAM} {version}\n")
        parser.exit()


def _build_parser(
    words: Sequence[str],
) -> tuple[argparse.ArgumentParser, dict[str, CommandModule]]:
    """The parser, and the module of the command that `words` name; no other one is imported."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Tools for checkpoints of PyTorch Distributed Checkpoint on local drives.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show the version")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # No option before the command takes a value, so the first other word is the command.
    named = next((word for word in words if not word.startswith("-")), None)
    modules: dict[str, CommandModule] = {}
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, allow_abbrev=False)
        if command.name == named:
            module = cast("CommandModule", importlib.import_module(command.module))
            module.configure(subparser)
            modules[command.name] = module
    return parser, modules


def _complain(error: DcpGdsError) -> None:
    """Print an error as one line, however many its text has."""
    text = " ".join(str(error).split())
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(
        f"{PROGRAM}: error: {text}"
    )


def _drop_stdout() -> None:
    """Send what is still buffered nowhere, or the interpreter complains about the pipe at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


if __name__ == "__main__":
    sys.exit(main())
