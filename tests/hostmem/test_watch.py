"""A watch samples while it is asked to, judges saves, and never stands in the way of its owner.

Method: the host of the test and made-up ones; real threads, a real fork, a full device as log.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import threading
import time
import weakref
from pathlib import Path

import pytest

from dcp_gds.errors import ConfigError, TransferError
from dcp_gds.hostmem.runlog import read_run
from dcp_gds.hostmem.verdict import Verdict
from dcp_gds.hostmem.watch import RING_SAMPLES_MAX, HostMemoryWatch
from tests.hostmem.hostfiles import HostFiles

GIB_PAGES = (1 << 30) // mmap.PAGESIZE
FAST_S = 0.005
# Ends a wait for something that never comes; no bound on speed.
PATIENCE_S = 60.0


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "dcp-gds-watch"]


def wait_for_samples(watch: HostMemoryWatch, number: int) -> None:
    """Give the thread the time to take some samples."""
    deadline = time.monotonic() + PATIENCE_S
    while len(watch.samples) < number:
        assert time.monotonic() < deadline
        threading.Event().wait(FAST_S)


def test_it_samples_between_start_and_close() -> None:
    with HostMemoryWatch(interval_s=FAST_S) as watch:
        wait_for_samples(watch, 5)
        assert len(threads()) == 1
    assert threads() == []
    watch.close()
    change = watch.change()
    assert change.samples >= 6
    assert change.seconds > 0
    times = [sample.time_s for sample in watch.samples]
    assert times == sorted(times)


def test_a_save_is_judged_by_what_happened_in_it(tmp_path: Path) -> None:
    files = HostFiles(tmp_path / "host")
    watch = HostMemoryWatch(root=files.root)
    assert watch.end_save() is None
    files.add(pswpout=GIB_PAGES)
    watch.begin_save()
    assert len(threads()) == 1
    files.add(nr_dirty=3 * GIB_PAGES)
    watch.tick()
    files.set(nr_dirty=0)
    report = watch.end_save(engine="buffered")
    assert threads() == []
    assert report is not None
    assert report.verdict is Verdict.DIRTY
    assert report.high["dirty_bytes"] == 3 << 30
    assert report.deltas["pswpout"] == 0
    assert (watch.saves, watch.last_report) == (1, report)


def test_a_save_that_never_ends(tmp_path: Path) -> None:
    watch = HostMemoryWatch(root=tmp_path)
    watch.abandon_save()
    watch.begin_save()
    watch.abandon_save()
    assert threads() == []
    watch.follow_save()
    assert watch.end_save() is None
    assert threads() == []
    with HostMemoryWatch(root=tmp_path) as started:
        started.begin_save()
        started.abandon_save()
        assert len(threads()) == 1


def test_the_time_between_saves_is_in_the_advice(tmp_path: Path) -> None:
    files = HostFiles(tmp_path / "host")
    watch = HostMemoryWatch(root=files.root)
    for _ in range(2):
        watch.begin_save()
        files.add(pgscan_kswapd=5)
        report = watch.end_save()
    assert report is not None
    assert "save every" in report.advice[0]


def test_iterations_inside_and_outside_saves(tmp_path: Path) -> None:
    watch = HostMemoryWatch(root=tmp_path)
    assert watch.iterations is None
    for _ in range(3):
        with watch.iteration():
            pass
    watch.begin_save()
    with watch.iteration():
        pass
    report = watch.end_save()
    assert report is not None
    times = report.iterations
    assert times is not None
    assert times.inside is not None
    assert times.outside is not None
    assert (times.inside.count, times.outside.count) == (1, 3)
    assert times.outside.median_s <= times.outside.p99_s <= times.outside.worst_s
    assert times.inflation == pytest.approx(times.inside.median_s / times.outside.median_s)


def test_an_iteration_that_sees_a_save_begin_or_end_is_inside(tmp_path: Path) -> None:
    watch = HostMemoryWatch(root=tmp_path)
    with watch.iteration():
        watch.begin_save()
    with watch.iteration():
        watch.end_save()
    times = watch.iterations
    assert times is not None
    assert times.inside is not None
    assert times.outside is None
    assert times.inside.count == 2


def test_an_iteration_that_fails_is_none(tmp_path: Path) -> None:
    watch = HostMemoryWatch(root=tmp_path)
    with pytest.raises(ZeroDivisionError), watch.iteration():
        1 / 0  # noqa: B018
    assert watch.iterations is None


def test_it_ends_with_its_owner() -> None:
    watch = HostMemoryWatch(interval_s=FAST_S)
    watch.start()
    (thread,) = threads()
    gone = weakref.ref(watch)
    del watch
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    gc.collect()
    assert gone() is None


def test_a_host_without_proc(tmp_path: Path) -> None:
    with HostMemoryWatch(root=tmp_path, interval_s=FAST_S) as watch:
        watch.begin_save()
        wait_for_samples(watch, 3)
        report = watch.end_save()
    assert report is not None
    assert (report.verdict, report.deltas, report.high) == (Verdict.CALM, {}, {})


def test_a_forked_child_goes_on_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with HostMemoryWatch(interval_s=FAST_S, jsonl=log) as watch:
        wait_for_samples(watch, 2)
        # Held at the moment of the fork, as if the thread had just been at it.
        with watch._lock:
            child = os.fork()  # The parent's thread is not in the child.
            if child == 0:
                try:
                    before = watch.change().samples
                    watch.begin_save()
                    wait_for_samples(watch, before + 3)
                    good = watch.end_save() is not None
                    watch.close()
                    os._exit(0 if good else 1)
                finally:
                    os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        wait_for_samples(watch, len(watch.samples) + 2)
    # The child left the log to its parent.
    run = read_run(log)
    assert run.saves == []
    assert run.skipped == 0


def test_the_log_has_everything(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    watch = HostMemoryWatch(jsonl=log)
    with watch:
        watch.begin_save()
        with watch.iteration():
            watch.tick()
        watch.end_save(engine="direct", path="/checkpoint")
    run = read_run(log)
    assert run.host["pid"] == os.getpid()
    assert len(run.samples) == len(watch.samples) >= 4
    assert run.samples[0].gauges == watch.samples[0].gauges
    (save,) = run.saves
    assert save.facts["verdict"] in list(Verdict)
    assert save.facts["path"] == "/checkpoint"
    assert save.begin_s < save.end_s
    (iteration,) = run.iterations
    assert iteration.in_save


def test_a_full_drive_ends_the_log_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with HostMemoryWatch(jsonl=log) as watch:
        assert watch._log is not None
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, watch._log._descriptor)
        os.close(full)
        watch.tick()
        watch.tick()
        with watch.iteration():
            pass
        assert isinstance(watch.log_error, TransferError)
        assert str(log) in str(watch.log_error)


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="run"):
        HostMemoryWatch(jsonl=tmp_path / "none/run.jsonl")


@pytest.mark.parametrize("interval_s", [0.0, -1.0, 0.001, 61.0, float("nan")])
def test_an_interval_out_of_range(interval_s: float) -> None:
    with pytest.raises(ConfigError, match="interval_s"):
        HostMemoryWatch(interval_s=interval_s)


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    watch = HostMemoryWatch(root=tmp_path)
    for _ in range(RING_SAMPLES_MAX + 5):
        watch.tick()
    assert len(watch.samples) == RING_SAMPLES_MAX
    assert watch.change().samples == RING_SAMPLES_MAX + 5


def test_a_log_cut_in_the_middle_of_a_line(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with HostMemoryWatch(jsonl=log) as watch:
        watch.tick()
    text = log.read_bytes()
    lines = text.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    run = read_run(log)
    assert len(run.samples) == len(watch.samples) - 1
    assert run.skipped == 1


@pytest.mark.parametrize(
    "line",
    [
        *("{", "[]", "3", "null", '{"kind": 1}', '{"kind": "sample"}'),
        '{"kind": "save", "facts": 1}',
        json.dumps({"kind": "sample", "time_s": 1, "counters": {"x": "y"}, "gauges": {}}),
    ],
)
def test_lines_that_are_no_records(line: str, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    good = json.dumps({"kind": "sample", "time_s": 1, "counters": {"x": 1}, "gauges": {}})
    log.write_text(f"{line}\n{good}\n")
    run = read_run(log)
    assert (len(run.samples), run.skipped) == (1, 1)
