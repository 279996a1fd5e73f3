"""Does a plan foretell how long a durable save takes on this machine?"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.contenders import OURS, WRITERS, State, make_state, save
from bench.machine import WarmMemory, settle
from bench.measure import timed
from bench.options import parse_options, scratch
from dcp_gds.hostmem.plan import Machine, make_plan

TENSORS = 16
GIB = 1 << 30
SIZES = (2 * GIB, 4 * GIB, 8 * GIB)
# One in four is what a plan may be off by.
ERROR_MAX = 0.25


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the drive by fio, foretell saves, make them, and print both."""
    options = parse_options("Foretold and measured saves", arguments, rounds=2, gib=8.0)
    with scratch(options) as directory:
        small = make_state(length=16 << 20, tensors=TENSORS)
        save(small, WRITERS[OURS](directory / "warm"))
        for size in (size for size in SIZES if size <= options.length):
            state = make_state(length=size, tensors=TENSORS)
            for _ in range(options.rounds):
                _one(state, directory, size=size)
            del state


def _one(state: State, directory: Path, *, size: int) -> None:
    """One round: fio and a save, right after each other, since drives drift."""
    settle(directory)
    rate = fio_bytes_per_s(directory, length=size)
    machine = Machine(
        world_size=1, gpus_per_node=1, host_bytes=24 * GIB, drives=1, drive_bytes_per_s=rate
    )
    foretold = make_plan(size, machine).ways[-1].durable_s
    settle(directory)
    target = directory / "checkpoint"
    with WarmMemory(length=GIB).released():
        measured = timed(lambda: save(state, WRITERS[OURS](target))).seconds
    shutil.rmtree(target)
    error = foretold / measured - 1
    verdict = "within" if abs(error) <= ERROR_MAX else "OUTSIDE"
    print(
        f"{size / GIB:.0f} GiB, drive {rate / 1e9:.2f} GB/s by fio: foretold {foretold:.2f} s,"
        f" measured {measured:.2f} s, {error:+.0%}: {verdict} {ERROR_MAX:.0%}"
    )


def fio_bytes_per_s(directory: Path, *, length: int) -> int:
    """What fio writes in a second, durably and past the page cache, to one preallocated file."""
    file = directory / "fio"
    command = [
        *("fio", "--name=write", f"--filename={file}", "--rw=write", "--bs=8M", "--direct=1"),
        *("--ioengine=libaio", "--iodepth=8", f"--size={length}", "--end_fsync=1"),
        "--output-format=json",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    file.unlink()
    return int(json.loads(done.stdout)["jobs"][0]["write"]["bw_bytes"])


if __name__ == "__main__":
    main()
