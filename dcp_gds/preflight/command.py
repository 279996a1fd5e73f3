"""Command: `gdscheck`, which prints the verdict on paths and what to change."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from dcp_gds.preflight.finding import Finding, Route, Status, Verdict
from dcp_gds.preflight.survey import verdicts_on

__all__ = ["configure", "main", "run"]

COLUMNS = 80
SCHEMA = 1
EXIT_OK, EXIT_WARNINGS, EXIT_UNAVAILABLE = 0, 1, 2
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
SUFFICES = {"gds": (Route.GDS,), "direct": (Route.GDS, Route.STAGED, Route.DIRECT)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command by itself and return its exit status."""
    parser = argparse.ArgumentParser(prog="gdscheck", allow_abbrev=False)
    configure(parser)
    status = run(parser.parse_args(argv))
    sys.stdout.flush()
    return status


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Tell which way a checkpoint takes to each path, and what to change for a better one."
        " A block and a short stretch are written to an unnamed file there; nothing else changes."
    )
    parser.epilog = (
        "Exit status: 0, nothing to say; 1, there are warnings; 2, the engine asked for by"
        " --require is not available (GDS, as long as it was not tried), or nothing can be written."
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a directory for checkpoints")
    parser.add_argument("--need", type=_bytes, default=0, metavar="SIZE", help="such as 900GiB")
    parser.add_argument("--require", choices=sorted(SUFFICES), help="fail if it is not available")
    parser.add_argument("--strict", action="store_true", help="count a check not made as warning")
    parser.add_argument("--quiet", action="store_true", help="print the verdicts only")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--no-probe", action="store_true", help="write nothing at all")


def run(arguments: argparse.Namespace) -> int:
    """Check the paths, print what was found, and return the exit status."""
    # A dead mount must not hang us: only a probe touches a path.
    paths = [os.path.abspath(path) for path in arguments.paths]  # noqa: PTH100
    verdicts = verdicts_on(paths, write=not arguments.no_probe, need_bytes=arguments.need)
    status = exit_status(verdicts, require=arguments.require, strict=arguments.strict)
    if arguments.json:
        shown = [asdict(verdict) for verdict in verdicts]
        found = {"schema": SCHEMA, "exit_status": status, "verdicts": shown}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines(verdicts, quiet=arguments.quiet))
    return status


def exit_status(verdicts: Sequence[Verdict], *, require: str | None, strict: bool) -> int:
    """What the verdicts are as an exit status."""
    for verdict in verdicts:
        wanted = require is None or verdict.route in SUFFICES[require]
        if verdict.route is Route.NONE or not wanted:
            return EXIT_UNAVAILABLE
        if require == "gds" and not verdict.tried:
            return EXIT_UNAVAILABLE
    counted = {Status.FAIL, Status.WARN} | ({Status.SKIP} if strict else set())
    found = (finding.status for verdict in verdicts for finding in verdict.findings)
    return EXIT_WARNINGS if counted.intersection(found) else EXIT_OK


def lines(verdicts: Sequence[Verdict], *, quiet: bool) -> Iterator[str]:
    """The text of verdicts: each in its line, then the findings, those on the host only once."""
    for verdict in verdicts:
        # Always one line, however long the path: scripts read it.
        yield _escaped(f"{verdict.path}: {verdict.route}")
        yield from _wrap(f"because {verdict.reason}", indent="  ")
    if quiet:
        return
    findings = dict.fromkeys(each for verdict in verdicts for each in verdict.findings)
    for finding in sorted(findings, key=lambda each: list(Status).index(each.status)):
        yield from _finding_lines(finding)


def _finding_lines(finding: Finding) -> Iterator[str]:
    """A finding, and its remedy if it needs one."""
    yield from _wrap(f"{finding.status:4}  {finding.check}: {finding.observed}", indent="      ")
    if finding.expected:
        yield from _wrap(f"      expected: {finding.expected}", indent="        ")
    if finding.remedy:
        yield from _wrap(f"      remedy: {finding.remedy}", indent="        ")


def _wrap(text: str, *, indent: str) -> list[str]:
    """Break text at spaces into lines of at most 80 columns, its odd characters escaped."""
    shown = _escaped(text)
    first = indent if not shown.startswith(" ") and indent == "  " else ""
    return textwrap.wrap(
        shown,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _escaped(text: str) -> str:
    """Text as one line: a path may have newlines, escape sequences or bytes that are no text."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _bytes(text: str) -> int:
    """The number of bytes in "900GiB"."""
    found = re.fullmatch(r"(\d+)\s*([KMGT]iB)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 900GiB")
    return int(found[1]) * UNITS[found[2] or ""]
