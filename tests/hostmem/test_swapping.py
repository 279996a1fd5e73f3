"""Under real pressure a buffered save makes the host swap and the watch says so; ours stays calm.

Method: a memory cgroup that holds the state and what a data loader would, and little more; a real
swap file; the state saved by stock DCP with a staged copy, and by `GDSWriter`, while the command
looks on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hostmem.pressure import memory_cgroup, swap_file
from tests.hostmem.swapworker import LOADER_BYTES, SAVES, STATE_BYTES

MIB = 1 << 20
# State and loader fit, with 128 MiB for all else; a copy of the state does not.
LIMIT = STATE_BYTES + LOADER_BYTES + 128 * MIB
SWAP = 1024 * MIB


@dataclass(frozen=True, slots=True)
class Seen:
    """How the watch ended, what it saw, and what the saves said of themselves."""

    status: int
    report: dict[str, object]
    saves: list[str]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory on the disk: swap files and direct I/O need one."""
    with tempfile.TemporaryDirectory(prefix="swapping-", dir=Path.cwd()) as path:
        yield Path(path)


def watched(kind: str, directory: Path) -> Seen:
    """Save in a cgroup while another process watches."""
    with (
        swap_file(directory, length=SWAP),
        memory_cgroup(f"dcp-gds-{kind}", limit=LIMIT) as cgroup,
        subprocess.Popen(
            [sys.executable, "-m", "tests.hostmem.swapworker", cgroup, directory / kind, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        with subprocess.Popen(
            [sys.executable, "-m", "dcp_gds.cli.main", "watch", "--pid", str(worker.pid), "--json"],
            stdout=subprocess.PIPE,
            text=True,
        ) as watch:
            # Its thread is there when it has taken its first sample.
            while len(list(Path(f"/proc/{watch.pid}/task").iterdir())) < 2:
                assert watch.poll() is None
            rest, _ = worker.communicate("go\n", timeout=300)
            out, _ = watch.communicate(timeout=60)
        assert worker.returncode == 0
    return Seen(watch.returncode, json.loads(out), rest.splitlines())


@pytest.mark.root
def test_a_buffered_save_swaps(directory: Path) -> None:
    seen = watched("stock", directory)
    assert seen.report["verdict"] == "swapping"
    assert seen.status == 1
    assert seen.report["failed_on"] == ["swapping"]
    assert "of the memory cgroup" in str(seen.report["advice"])


@pytest.mark.root
def test_ours_is_calm_under_the_same_load(directory: Path) -> None:
    seen = watched("ours", directory)
    assert seen.report["verdict"] == "calm"
    assert seen.status == 0
    assert len(seen.saves) == SAVES
    assert all(line.endswith(" calm") for line in seen.saves)
