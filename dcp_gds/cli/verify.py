"""Verify: the command that checks a checkpoint for damage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict, VerifyReport
from dcp_gds.cli.printable import printable
from dcp_gds.cli.progress import SaveProgress

__all__ = ["configure", "run"]

EXIT_STATUS: Mapping[Verdict, int] = MappingProxyType(
    {Verdict.GOOD: 0, Verdict.DAMAGED: 1, Verdict.UNREADABLE: 2, Verdict.UNCHECKED: 3}
)
HEADLINES: Mapping[Verdict, str] = MappingProxyType(
    {
        Verdict.GOOD: "good: everything has the checksum it was saved with",
        Verdict.DAMAGED: "damaged",
        Verdict.UNREADABLE: "cannot be read",
        Verdict.UNCHECKED: "sound as far as it was checked",
    }
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Check a DCP checkpoint for damage, whoever wrote it: metadata, shard files, archives, and"
        " every byte of payload against its checksum. Nothing is written, no payload is unpickled"
        " and no link followed. Host memory stays below 64 MiB and what the metadata take."
    )
    parser.epilog = (
        "Exit status: 0, everything was compared with a checksum and nothing is wrong;"
        " 1, something is damaged or missing;"
        " 2, it cannot be read: no metadata, no permission, or metadata that name what they must"
        " not;"
        " 3, nothing is wrong, but not everything could be compared: with --fast, after a save with"
        " checksum=False, and for every checkpoint of PyTorch's own FileSystemWriter, whose"
        " .metadata have no checksum (its tensors have one each, and are compared)."
        " Files that are no part of the checkpoint are listed and change nothing."
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a checkpoint's directory")
    parser.add_argument("--fast", action="store_true", help="leave the payload out")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE.CLASS",
        help="a class of a custom planner that the metadata may name; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Verify the checkpoint and return what the verdict is as an exit status."""
    with SaveProgress(Console(stderr=True), "verifying") as bar:
        report = verify_checkpoint(
            arguments.path, fast=arguments.fast, allow=arguments.allow, progress=bar
        )
    if arguments.json:
        sys.stdout.write(report.to_json() + "\n")
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _lines(report))
    return EXIT_STATUS[report.verdict]


def _lines(report: VerifyReport) -> Iterator[str]:
    """The report as text: the verdict first."""
    yield f"{report.path}: {HEADLINES[report.verdict]}"
    if report.metadata_files:
        yield (
            f"{_counted(report.items, 'item')} in {_counted(report.files, 'file')},"
            f" {report.bytes:,} bytes of payload:"
            f" {report.verified_bytes:,} verified, {report.unverified_bytes:,} not"
        )
    yield from (f"cannot be read: {reason}" for reason in report.unreadable)
    yield from (f"damaged: {damage}" for damage in report.damages)
    if report.damage_count > len(report.damages):
        yield f"damaged: {report.damage_count - len(report.damages):,} more"
    for unchecked in report.unchecked:
        size = f" ({unchecked.bytes:,} bytes)" if unchecked.bytes else ""
        yield f"not checked: {unchecked.reason}{size}"
    if report.unreferenced_count:
        yield (
            f"no part of the checkpoint: {_counted(report.unreferenced_count, 'file')},"
            f" {report.unreferenced_bytes:,} bytes"
        )
        yield from (f"  {name}" for name in report.unreferenced)
    if report.unreferenced_count > len(report.unreferenced):
        yield f"  and {report.unreferenced_count - len(report.unreferenced):,} more"


def _counted(number: int, noun: str) -> str:
    """A number and what it counts."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
