"""Swap storm: what an asynchronous save does to a training loop on a host that is nearly full.

A loop changes 2 GiB of parameters and reads a working set of 1 GiB, in a memory cgroup of 4.2 GB
with a swap file of 2 GiB (as root; without, nothing is limited). It saves once with each contender.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.environment import environment_of
from bench.machine import WarmMemory, drop_caches, settle
from bench.options import ROOT, Options, parse_options, scratch
from bench.stormbox import storm_box
from bench.stormplot import plot_storms
from bench.stormtrainer import CONTENDERS

QUESTION = "What does an asynchronous save do to training on a host that is nearly full?"
GIB = 1 << 30
# Half of the state: a data loader's working set. The cgroup has room for a quarter of the state
# beside both and the process, so a whole copy of the state does not fit.
LOADER_SHARE = 0.5
PROCESS_BYTES = 450_000_000
LIMIT_PER_STATE = 1.75
# With half of the state the kernel killed the stock trainer.
SWAP_PER_STATE = 1.0
SAMPLE_S = 0.1
COUNTERS = ("nr_dirty", "nr_writeback", "pgscan_kswapd", "pgscan_direct", "pswpin", "pswpout")
PICTURE = ROOT / "bench" / "results" / "swapstorm.png"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every contender once a round; publish the last round's curves and all figures."""
    options = parse_options(QUESTION, arguments, rounds=1, gib=2.0)
    # Whoever ends it must not leave a swap file in use behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    storms: dict[str, dict[str, Any]] = {}
    rounds: list[dict[str, Any]] = []
    with scratch(options) as directory:
        warm = WarmMemory(length=int(options.length * LIMIT_PER_STATE))
        for turn in range(options.rounds):
            for name in options.select(CONTENDERS):
                storms[name] = _storm(name, directory, options, warm)
                rounds.append({"round": turn, "contender": name} | _figures(storms[name]))
    document = {
        "question": QUESTION,
        "environment": environment_of(options.directory),
        "length": options.length,
        "limited": all(storm["limited"] for storm in storms.values()),
        "runs": rounds,
        "storms": storms,
    }
    options.json_directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1) + "\n"
    (options.json_directory / "swapstorm.json").write_text(text, encoding="utf-8")
    plot_storms(storms, PICTURE)
    _print(rounds)


def _storm(name: str, directory: Path, options: Options, warm: WarmMemory) -> dict[str, Any]:
    """Run one contender in its box and watch the kernel's counters."""
    path = directory / "checkpoint"
    command = [sys.executable, "-m", "bench.stormtrainer", name, str(path)]
    command += [str(options.length), str(int(options.length * LOADER_SHARE))]
    limit = PROCESS_BYTES + int(options.length * LIMIT_PER_STATE)
    swap = int(options.length * SWAP_PER_STATE) // 4096 * 4096
    warm.hold()
    settle(directory)
    with storm_box(directory, limit=limit, swap=swap) as group, warm.released():
        if group is not None:
            # The shell enters the cgroup, so that nothing of the trainer is outside.
            command = ["sh", "-c", f'echo $$ > {group}; exec "$@"', "sh", *command]
        facts: list[dict[str, Any]] = []
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
            reader = threading.Thread(target=_read, args=(trainer, facts))
            reader.start()
            samples = []
            try:
                while trainer.poll() is None:
                    samples.append(_counters())
                    time.sleep(SAMPLE_S)
            finally:
                trainer.kill()
            reader.join()
        if trainer.returncode:
            raise SystemExit(f"{name}: the trainer ended with {trainer.returncode}")
    shutil.rmtree(path)
    drop_caches(directory)
    return _told(facts) | {"samples": samples, "limited": group is not None} | _moved(samples)


def _read(trainer: subprocess.Popen[str], facts: list[dict[str, Any]]) -> None:
    """Collect what the trainer says."""
    assert trainer.stdout is not None
    facts.extend(json.loads(line) for line in trainer.stdout)


def _counters() -> dict[str, float]:
    """The kernel's counters of the whole machine, and when they were read."""
    lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    values = dict(line.split(" ", 1) for line in lines)
    return {"time": time.monotonic()} | {name: int(values[name]) for name in COUNTERS}


def _told(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """The trainer's lines in one dictionary."""
    told: dict[str, Any] = {"iterations": [fact for fact in facts if "iteration" in fact]}
    for fact in facts:
        told |= {key: fact[key] for key in ("asked", "blocked_s", "saved") if key in fact}
    return told


def _moved(samples: list[dict[str, float]]) -> dict[str, Any]:
    """How much the counters that only grow have grown."""
    first, last = samples[0], samples[-1]
    grown = {name: int(last[name] - first[name]) for name in COUNTERS if not name.startswith("nr")}
    return {"grown": grown, "swapped_pages": grown["pswpout"]}


def _figures(storm: dict[str, Any]) -> dict[str, float]:
    """What a table shows of one storm."""
    before = [each["seconds"] for each in storm["iterations"] if each["began"] < storm["asked"]]
    after = [each["seconds"] for each in storm["iterations"] if each["began"] >= storm["asked"]]
    usual = statistics.median(before[1:])
    return {
        "blocked_s": storm["blocked_s"],
        "total_s": storm["saved"] - storm["asked"],
        "usual_iteration_s": usual,
        "slowest_ratio": max(after) / usual,
        "dirty_mib_max": max(each["nr_dirty"] for each in storm["samples"]) * 4096 / (1 << 20),
        **{name: float(value) for name, value in storm["grown"].items()},
    }


def _print(rounds: list[dict[str, Any]]) -> None:
    """A row for each storm."""
    table = Table(title=QUESTION, title_justify="left")
    headings = [name for name in rounds[0] if name != "round"]
    for heading in headings:
        table.add_column(heading)
    for row in rounds:
        values = (row[heading] for heading in headings)
        table.add_row(*(f"{v:,.2f}" if isinstance(v, float) else str(v) for v in values))
    Console(width=150, highlight=False).print(table)


if __name__ == "__main__":
    main()
