"""Swapworker: a training in a memory cgroup that saves its state, by stock DCP or by ours.

Run as a process: arguments are the cgroup, the checkpoint's directory and "stock" or "ours". It
holds a state and what a data loader would, touches both again and again, and saves.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import save

from dcp_gds import GDSWriter
from tests.ranks import EXPECTED_WARNINGS

MIB = 1 << 20
STATE_BYTES = 256 * MIB
LOADER_BYTES = 256 * MIB
SAVES = 2


def main() -> None:
    """Save and say what the save's report says, if there is one."""
    for message in (*EXPECTED_WARNINGS, "Detected an existing checkpoint"):
        warnings.filterwarnings("ignore", message=message)
    cgroup, path, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    # The interpreter and torch are charged before, to whom they may be: the limit is for the data.
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    state = {f"w{n}": torch.ones(STATE_BYTES // 4 // 8) for n in range(8)}
    loader = torch.ones(LOADER_BYTES // 4)
    # The other side begins to watch when it reads this.
    say("ready")
    sys.stdin.readline()
    for _ in range(SAVES):
        for tensor in (*state.values(), loader):
            tensor.add_(1)
        if kind == "stock":
            # As its async_save does: a copy of everything, then the page cache.
            save(BlockingAsyncStager().stage(state), storage_writer=FileSystemWriter(path))
        else:
            with GDSWriter(path, overwrite=True) as writer:
                save(state, storage_writer=writer)
                assert writer.report is not None
                assert writer.report.host_memory is not None
                say(f"{writer.report.engine} {writer.report.host_memory.verdict}")


def say(line: str) -> None:
    """Tell the test a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
