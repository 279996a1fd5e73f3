"""Ls: the command that lists what a checkpoint holds."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dcp_gds.cli.listing import Entry, Listing, read_listings
from dcp_gds.cli.printable import printable

__all__ = ["configure", "run"]

HEADINGS = ("FQN", "DTYPE", "SHAPE", "AT", "BYTES", "FILE", "OFFSET")
# Columns of numbers are read from the right.
RIGHT_ALIGNED = (4, 6)
NOTHING = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "List what a DCP checkpoint holds, whoever wrote it: one line for each chunk of a tensor"
        " and each byte item. SHAPE is the chunk's, AT where it begins in its tensor, BYTES its"
        " payload, FILE and OFFSET where its item is stored. Only the metadata are read."
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a checkpoint's directory, or one metadata file"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE.CLASS",
        help="a class of a custom planner that the metadata may name; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """List the checkpoint and return 0."""
    listings = read_listings(arguments.path, allow=arguments.allow)
    sys.stdout.write(_as_json(listings) if arguments.json else _as_text(listings))
    return 0


def _as_json(listings: Sequence[Listing]) -> str:
    """All fields, the totals and the metadata files they come from, as one JSON object."""
    value = {
        "bytes": sum(listing.bytes for listing in listings),
        "metadata": [
            dataclasses.asdict(listing) | {"bytes": listing.bytes, "files": sorted(listing.files)}
            for listing in listings
        ],
    }
    return json.dumps(value, indent=1) + "\n"


def _as_text(listings: Sequence[Listing]) -> str:
    """A table for each metadata file, headed by the file's name if there are several."""
    lines: list[str] = []
    for listing in listings:
        if len(listings) > 1:
            lines += [f"{listing.metadata_file}:"]
        lines += _aligned([HEADINGS, *(_cells(entry) for entry in listing.entries)])
        lines += [_total([listing]), ""]
    if len(listings) > 1:
        lines += [f"{len(listings)} ranks: {_total(listings)}", ""]
    return "\n".join(lines[:-1]) + "\n"


def _cells(entry: Entry) -> tuple[str, ...]:
    """One line of the table."""
    return (
        printable(entry.fqn),
        entry.dtype,
        _numbers(entry.shape),
        _numbers(entry.chunk_offsets),
        str(entry.bytes),
        printable(entry.file),
        str(entry.offset),
    )


def _numbers(values: tuple[int, ...] | None) -> str:
    """A shape without blanks, so that every line has the same number of words."""
    return NOTHING if values is None else "[" + ",".join(map(str, values)) + "]"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    """Pad the columns. No frame and no folding, so that the lines suit grep, sort and awk."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if column in RIGHT_ALIGNED else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _total(listings: Sequence[Listing]) -> str:
    """How many items and bytes, in how many files, and who wrote them."""
    items = sum(len(listing.entries) for listing in listings)
    files = len({file for listing in listings for file in listing.files})
    size = sum(listing.bytes for listing in listings)
    tokens = {listing.token for listing in listings}
    writer = "by another writer than dcp_gds"
    if None not in tokens:
        writer = "by dcp_gds, token " + ", ".join(sorted(map(str, tokens)))
    return (
        f"{items} item{'s' * (items != 1)}, {size} bytes ({size / 1e6:.1f} MB)"
        f" in {files} file{'s' * (files != 1)}, written {writer}"
    )
