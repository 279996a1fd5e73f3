"""A writer watches the host's memory during each save, and only then.

Method: saves that succeed, fail and are asynchronous, with a real watch on a made-up host.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from dcp_gds import GDSWriter
from dcp_gds.hostmem.watch import HostMemoryWatch
from tests.hostmem.hostfiles import HostFiles

STATE = {"w": torch.arange(100_000)}


def watching() -> bool:
    return any(thread.name == "dcp-gds-watch" for thread in threading.enumerate())


def test_the_report_of_a_save_has_a_verdict(tmp_path: Path) -> None:
    with GDSWriter(tmp_path) as writer:
        save(STATE, storage_writer=writer)
        report = writer.report
    assert report is not None
    assert report.committed
    memory = report.host_memory
    assert memory is not None
    assert memory.samples >= 2
    assert memory.seconds >= report.seconds
    assert json.loads(report.to_json())["host_memory"]["verdict"] == memory.verdict
    assert not watching()


def test_what_happens_during_the_save_is_in_its_report(tmp_path: Path) -> None:
    files = HostFiles(tmp_path / "host")

    def swap(done: int, total: int) -> None:
        files.add(pswpout=1000)

    watch = HostMemoryWatch(root=files.root)
    with GDSWriter(tmp_path / "a", progress=swap, watch=watch) as writer:
        save(STATE, storage_writer=writer)
        assert writer.report is not None
        memory = writer.report.host_memory
    assert memory is not None
    assert memory.verdict == "swapping"
    assert memory.deltas["pswpout"] >= 1000
    assert watch.last_report == memory


def test_a_save_that_fails_is_watched_no_longer(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    watch = HostMemoryWatch()
    with GDSWriter(tmp_path, progress=fail, watch=watch) as writer:
        with pytest.raises(CheckpointException):
            save(STATE, storage_writer=writer)
        assert not watching()
        assert writer.report is None or not writer.report.committed


def test_a_save_that_is_refused_before_it_writes(tmp_path: Path) -> None:
    refused = {"w": torch.empty(3, device="meta")}
    with GDSWriter(tmp_path) as writer, pytest.raises(CheckpointException):
        save(refused, storage_writer=writer)
    assert not watching()


def test_one_watch_for_a_whole_training(tmp_path: Path) -> None:
    with HostMemoryWatch(jsonl=tmp_path / "run.jsonl") as watch:
        for step in range(2):
            with watch.iteration(), GDSWriter(tmp_path / f"{step}", watch=watch) as writer:
                save(STATE, storage_writer=writer)
        assert watching()
    assert watch.saves == 2
    assert watch.iterations is not None
    assert watch.iterations.inside is not None
    assert not watching()
