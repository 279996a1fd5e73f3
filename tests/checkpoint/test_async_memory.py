"""Asynchronous saves stay inside their ceiling of host memory, the first as well as the fiftieth.

Method: processes in memory cgroups that leave them the state, the ceiling and 128 MiB; and fifty
saves of one process, watched through /proc.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from dcp_gds import GDSWriter
from tests.memorycgroup import memory_cgroup

MIB = 1 << 20
SLACK_MIB = 128
TENSOR_MIB = 16
LIMIT_S = 60.0
# The imports and the first save of anything: what a process takes before there is a state.
BASELINE = """
import json, sys, warnings
from pathlib import Path
import psutil, torch
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from dcp_gds import GDSWriter
warnings.simplefilter("ignore")
save({"x": torch.ones(9)}, storage_writer=GDSWriter(sys.argv[1] + "-small"))
MIB, memory = 1 << 20, psutil.Process()
baseline = memory.memory_info().rss // MIB
state_mib, ceiling_mib, tensor_mib, slack_mib, group = map(str, sys.argv[2:])
state = {
    f"w{n}": torch.full((int(tensor_mib) * MIB // 4,), 1.0)
    for n in range(int(state_mib) // int(tensor_mib))
}
limit = baseline + int(state_mib) + int(ceiling_mib) + int(slack_mib)
Path(group, "memory.limit_in_bytes").write_text(str(limit * MIB))
ceiling = int(ceiling_mib) * MIB
with GDSWriter(
    sys.argv[1], overwrite=True, host_bytes_max=ceiling, host_memory_fraction=0.9
) as writer:
    for _ in range(2):
        future = async_save(state, storage_writer=writer)
        for value in state.values():
            value.add_(1.0)
        future.result()
        report = writer.report
Path(group, "memory.limit_in_bytes").write_text("-1")
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
swapped = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSwap")]
print(json.dumps({
    "extra_mib": int(peak[0]) // 1024 - baseline - int(state_mib), "swapped": int(swapped[0]),
    "staging_mib": report.staging_bytes_peak // MIB, "copied": report.copied_bytes,
    "direct": report.direct_bytes,
}))
"""


def saved(tmp_path: Path, *, state_mib: int, ceiling_mib: int) -> dict[str, int]:
    with memory_cgroup(limit=8 << 30) as group:
        numbers = (state_mib, ceiling_mib, TENSOR_MIB, SLACK_MIB)
        done = group.run(
            sys.executable,
            "-c",
            BASELINE,
            str(tmp_path / "checkpoint"),
            *map(str, numbers),
            str(group.directory),
        )
    assert done.returncode == 0, done.stderr[-2000:] or f"ended with {done.returncode}"
    return cast("dict[str, int]", json.loads(done.stdout))


@pytest.mark.parametrize("state_mib", [64, 256, 1024])
def test_a_ceiling_of_256_mib_holds(state_mib: int, tmp_path: Path) -> None:
    figures = saved(tmp_path, state_mib=state_mib, ceiling_mib=256)
    assert figures["extra_mib"] <= min(state_mib, 256) + SLACK_MIB
    assert figures["copied"] == min(state_mib, 256) * MIB
    assert figures["direct"] == max(0, state_mib - 256) * MIB
    assert figures["staging_mib"] <= 256 + 64
    assert figures["swapped"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("state_mib", [256, 1024, 4096])
def test_a_ceiling_of_1_gib_holds(state_mib: int, tmp_path: Path) -> None:
    figures = saved(tmp_path, state_mib=state_mib, ceiling_mib=1024)
    assert figures["extra_mib"] <= min(state_mib, 1024) + SLACK_MIB
    assert figures["swapped"] == 0


def resources() -> tuple[int, int, int, int]:
    """Resident MiB, threads, descriptors and mappings of this process."""
    gc.collect()
    own = psutil.Process()
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    return own.memory_info().rss // MIB, own.num_threads(), own.num_fds(), maps


def wait_for_threads_to_end(number: int) -> None:
    """Wait until there are no more than so many: DCP's of a save ends after its future is done."""
    own, deadline = psutil.Process(), time.monotonic() + LIMIT_S
    while own.num_threads() > number and time.monotonic() < deadline:
        time.sleep(0.01)


def test_fifty_saves_are_flat(tmp_path: Path) -> None:
    state: dict[str, Any] = {f"w{number}": torch.zeros(MIB) for number in range(4)}
    state |= {f"s{number}": torch.zeros(8) for number in range(50)}
    with GDSWriter(tmp_path, overwrite=True, host_bytes_max=8 * MIB) as writer:

        def save() -> None:
            future = cast("Future[Any]", async_save(state, storage_writer=writer))
            future.result(LIMIT_S)

        for _ in range(5):
            save()
        before = resources()
        for _ in range(50):
            save()
        wait_for_threads_to_end(before[1])
        after = resources()
    assert after[0] <= before[0] + 8
    assert after[1] <= before[1]
    assert after[2] <= before[2]
    # malloc splits its arenas now and then; a leak would add at least one for each save.
    assert after[3] < before[3] + 25
    assert len(list(tmp_path.glob("*.distcp"))) == 1
    assert threading.active_count() <= before[1]
