"""A process that exits or gets SIGTERM during a save leaves a committed checkpoint or none.

Method: child processes that save on a slow drive and exit, or are told to.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dcp_gds import GDSReader
from tests.checkpoint.storage import dcp_load
from tests.slowdrive import slow_mount

MIB = 1 << 20
LIMIT_S = 60.0
SAVE = """
import sys, warnings
import torch
from torch.distributed.checkpoint.state_dict_saver import async_save
from dcp_gds import GDSWriter
warnings.simplefilter("ignore")
state = {"w": torch.full((4 << 20,), 1.0)}
writer = GDSWriter(sys.argv[1], progress=lambda done, total: print(done, flush=True))
async_save(state, storage_writer=writer)
state["w"].fill_(2.0)
"""


@pytest.fixture(scope="module")
def slow() -> Iterator[Path]:
    with slow_mount(bytes_per_s=16 * MIB) as point:
        yield point


def saving(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SAVE, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_an_exit_lets_the_save_end(slow: Path) -> None:
    with saving(slow / "exit") as process:
        assert process.wait(LIMIT_S) == 0
    target = {"w": torch.zeros(4 * MIB)}
    dcp_load(target, storage_reader=GDSReader(slow / "exit"))
    assert target["w"].eq(1.0).all()


def test_sigterm_leaves_nothing_that_looks_committed(slow: Path) -> None:
    with saving(slow / "term") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == -signal.SIGTERM
    assert not (slow / "term" / ".metadata").exists()
