"""Plan: the command that says whether a state fits a host while it is saved."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.plan import Machine, Plan, Way, make_plan
from dcp_gds.hostmem.procfile import read_file
from dcp_gds.hostmem.statesize import DTYPES, OPTIMIZERS, bytes_per_parameter
from dcp_gds.hostmem.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_seconds,
)
from dcp_gds.hostmem.vmstat import parse_kib

__all__ = ["configure", "run"]

EXIT_FITS = 0
EXIT_DOES_NOT = 1
PERCENT = 100


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Size host memory before configuring checkpoints: what a stock async save, one with capped"
        " staging and a streamed one take of a node's memory, how long they block the training and"
        " when they are durable, and how often to save (Young 1974, Daly 2006). Bytes are written"
        " as 512GiB, 512G (both 2^30) or 512GB (10^9)."
    )
    parser.epilog = (
        "Exit status: 0, a stock async save stays below the ceiling; 1, it does not; 2, the"
        " arguments make no plan."
    )
    state = parser.add_argument_group("the state")
    which = state.add_mutually_exclusive_group(required=True)
    which.add_argument("--params", metavar="COUNT", help="parameters of the model, such as 70e9")
    which.add_argument(
        "--checkpoint", type=Path, metavar="PATH", help="a DCP checkpoint of the state instead"
    )
    state.add_argument("--dtype", default="bf16", help=f"of the weights: {', '.join(DTYPES)}")
    state.add_argument("--optimizer", default="adamw", help=", ".join(OPTIMIZERS))
    state.add_argument(
        "--master",
        action=argparse.BooleanOptionalAction,
        help="a master copy of the weights in fp32 (if the dtype is smaller)",
    )
    nodes = parser.add_argument_group("the machine")
    nodes.add_argument("--world-size", default="8", metavar="COUNT", help="ranks of the job (8)")
    nodes.add_argument("--gpus-per-node", default="8", metavar="COUNT", help="ranks of a node (8)")
    nodes.add_argument("--host-ram", metavar="BYTES", help="of a node (this host's)")
    nodes.add_argument("--drives", default="1", metavar="COUNT", help="of a node (1)")
    nodes.add_argument("--drive-write", required=True, metavar="RATE", help="such as 6.5GB/s")
    nodes.add_argument(
        "--copy", default="25GB/s", metavar="RATE", help="from a GPU to host memory (25GB/s)"
    )
    nodes.add_argument("--ceiling", default="40%", metavar="PERCENT", help="for checkpoints (40%%)")
    nodes.add_argument("--mtbf", metavar="TIME", help="between failures of the job, such as 12h")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(arguments: argparse.Namespace) -> int:
    """Make the plan, print it, and return the exit status."""
    machine = Machine(
        world_size=parse_count(arguments.world_size, name="--world-size"),
        gpus_per_node=parse_count(arguments.gpus_per_node, name="--gpus-per-node"),
        host_bytes=_host_bytes(arguments.host_ram),
        drives=parse_count(arguments.drives, name="--drives"),
        drive_bytes_per_s=parse_bytes(arguments.drive_write, name="--drive-write"),
        copy_bytes_per_s=parse_bytes(arguments.copy, name="--copy"),
        ceiling_share=_share(arguments.ceiling),
        mtbf_s=None if arguments.mtbf is None else parse_seconds(arguments.mtbf, name="--mtbf"),
    )
    plan = make_plan(_state_bytes(arguments), machine)
    if arguments.json:
        value = {"machine": dataclasses.asdict(machine), "plan": dataclasses.asdict(plan)}
        sys.stdout.write(json.dumps(value) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(plan, machine))
    return EXIT_FITS if plan.ways[0].within_ceiling else EXIT_DOES_NOT


def _state_bytes(arguments: argparse.Namespace) -> int:
    """Bytes of the state, reckoned or read."""
    if arguments.checkpoint is not None:
        # Metadata are DCP's: only this way needs torch.
        from dcp_gds.cli.listing import read_listings

        return sum(listing.bytes for listing in read_listings(arguments.checkpoint))
    parameters = parse_count(arguments.params, name="--params")
    return parameters * bytes_per_parameter(
        arguments.dtype, arguments.optimizer, master=arguments.master
    )


def _host_bytes(text: str | None) -> int:
    """Memory of a node: what is said, or this host's."""
    if text is not None:
        return parse_bytes(text, name="--host-ram")
    total = parse_kib(read_file("/proc/meminfo")).get("MemTotal")
    if total is None:
        raise ConfigError("this host does not tell its memory; pass --host-ram")
    return total


def _share(text: str) -> float:
    """A percentage as a part of one."""
    try:
        return float(text.removesuffix("%")) / PERCENT
    except ValueError as error:
        raise ConfigError(f"--ceiling is {text!r}; expected a percentage such as 40%") from error


def _lines(plan: Plan, machine: Machine) -> Iterator[str]:
    """The plan as text."""
    yield (
        f"state       {format_bytes(plan.state_bytes)}: {format_bytes(plan.bytes_per_rank)} a rank,"
        f" {format_bytes(plan.bytes_per_node)} a node of {machine.ranks_per_node}"
    )
    yield (
        f"host        {format_bytes(machine.host_bytes)}, of which checkpoints may take"
        f" {format_bytes(plan.ceiling_bytes)}"
    )
    yield f"drives      {format_bytes(plan.write_bytes_per_s)} a second and node"
    yield ""
    heading = f"{'':26}{'HOST MEMORY':>12}{'OF IT':>7}{'BLOCKED':>12}{'DURABLE':>12}"
    yield heading + ("" if machine.mtbf_s is None else f"{'EVERY':>13}{'LOST':>7}")
    yield from (_row(way) for way in plan.ways)
    yield ""
    yield plan.verdict


def _row(way: Way) -> str:
    """One way to save."""
    mark = " " if way.within_ceiling else "*"
    row = (
        f"{mark} {way.name:24}{format_bytes(way.host_bytes):>12}{way.host_share:>7.0%}"
        f"{format_seconds(way.blocked_s):>12}{format_seconds(way.durable_s):>12}"
    )
    if way.interval_s is not None and way.lost_share is not None:
        row += f"{format_seconds(way.interval_s):>13}{way.lost_share:>7.1%}"
    return row
