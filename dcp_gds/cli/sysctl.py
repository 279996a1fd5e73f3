"""Sysctl: the command that shows, prints and sets the kernel's settings of memory."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dcp_gds.hostmem.sysctl import Changed, Directive, apply, conf_text, directives, way_back

__all__ = ["configure", "run"]

EXIT_GOOD = 0
EXIT_NOT_GOOD = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Show the kernel's settings of memory that matter to checkpoints: what they are, what they"
        " should be, why, and what they mean in bytes on this host."
    )
    parser.epilog = (
        "Exit status: 0; with --check 1 if a setting is not as advised; 2, they cannot be read or"
        " set. vm.swappiness=0 is never advised: it makes the kernel hold on to processes' memory"
        " until it is too late."
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--conf", action="store_true", help="print a file for /etc/sysctl.d instead")
    which.add_argument(
        "--apply", action="store_true", help="set what is not as advised, until the next boot"
    )
    which.add_argument(
        "--check", action="store_true", help="exit with 1 if a setting is not as advised"
    )
    which.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where the host's /proc is, such as /host in a container (/)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show, print or set, and return the exit status."""
    found = directives(arguments.root)
    if arguments.conf:
        sys.stdout.write(conf_text(found))
    elif arguments.json:
        value = [dataclasses.asdict(each) for each in found]
        sys.stdout.write(json.dumps({"directives": value}) + "\n")
    elif arguments.apply:
        _apply(found, arguments.root)
    else:
        _show(found)
    wrong = [each for each in found if not each.good]
    return EXIT_NOT_GOOD if arguments.check and wrong else EXIT_GOOD


def _apply(found: Sequence[Directive], root: Path) -> None:
    """Set what is not good, and say how to go back even if that ends half-way."""
    changes: list[Changed] = []
    try:
        for change in apply(found, root):
            changes.append(change)
            sys.stdout.write(f"vm.{change.name} = {change.value} (it was {_before(change)})\n")
    finally:
        if changes:
            sys.stdout.write(f"back: {way_back(changes)}\n")
    if changes:
        sys.stdout.write("until the next boot; `dcp-gds sysctl --conf` makes a file that lasts\n")
    else:
        sys.stdout.write("nothing to set: all is as advised\n")


def _before(change: Changed) -> str:
    """The value before, with the name of the setting that held it if that is another one."""
    if change.before_name == change.name:
        return str(change.before)
    return f"vm.{change.before_name} = {change.before}"


def _show(found: Sequence[Directive]) -> None:
    """Print a table, and under it the reasons for what should change."""
    table = Table(box=None, pad_edge=False, header_style="")
    for heading in ("", "NOW", "ADVISED", "ON THIS HOST"):
        right = heading in {"NOW", "ADVISED"}
        table.add_column(heading, justify="right" if right else "left", no_wrap=not heading)
    for each in found:
        now = "-" if each.now is None else str(each.now)
        advised = "-" if each.advised is None or each.now is None else str(each.advised)
        mark = " " if each.good else "*"
        table.add_row(f"{mark} vm.{each.name}", now, advised, each.means)
    console = Console(highlight=False)
    console.print(table)
    wrong = [each for each in found if not each.good]
    for each in wrong:
        console.print(f"* vm.{each.name} = {each.advised}: {each.why}")
    console.print("set them: --apply, or --conf for a file" if wrong else "all is as advised")
