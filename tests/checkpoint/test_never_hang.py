"""Whatever becomes of a save, the trainer goes on, and its future has the cause, on every rank.

Method: ranks of which one cannot stage, cannot plan, or is killed; a save's thread that dies before
it comes to the writer; a save that would run in another process.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import DcpGdsError, StorageFullError, TransferError, UnsupportedError
from tests.checkpoint.refusal import refused
from tests.checkpoint.storage import dcp_load
from tests.filesystems import Mounts
from tests.ranks import RankError, Ranks

MIB = 1 << 20
LIMIT_S = 60.0
# Far below this a living rank has to know.
GROUP_TIMEOUT = timedelta(seconds=20)


class Tagged(torch.Tensor):
    """A subclass that cannot be saved."""


class Unpickled:
    """An object that cannot be copied."""

    def __deepcopy__(self, memo: object) -> Unpickled:
        raise RuntimeError("not this one")


class FailingPlanner(DefaultSavePlanner):
    """Fails to plan on the last rank."""

    def create_local_plan(self) -> SavePlan:
        if dist.get_rank() == dist.get_world_size() - 1:
            raise RuntimeError("no plan")
        return super().create_local_plan()


def started(state: dict[str, Any], writer: GDSWriter, **options: Any) -> Future[Any]:
    return cast("Future[Any]", async_save(state, storage_writer=writer, **options))


def fail_and_go_on(path: Path, kind: str) -> None:
    """A save that one of the ranks cannot do, and one with the same writer that all can."""
    group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    state: dict[str, Any] = {"large": torch.ones(MIB), "small": torch.ones(3)}
    if kind == "stage" and dist.get_rank() == 1:
        state["bad"] = Unpickled()
    if kind == "refused" and dist.get_rank() == 1:
        state["bad"] = torch.ones(MIB).as_subclass(Tagged)
    planner = FailingPlanner() if kind == "plan" else None
    cause = {"stage": "not this one", "refused": "Tagged", "plan": "no plan"}[kind]
    with GDSWriter(path) as writer:
        began = time.monotonic()
        future = started(state, writer, planner=planner, process_group=group)
        with refused(RuntimeError if kind == "plan" else UnsupportedError, cause):
            future.result(LIMIT_S)
        assert time.monotonic() - began < GROUP_TIMEOUT.total_seconds() / 2
        state.pop("bad", None)
        started(state, writer, process_group=group).result(LIMIT_S)
        dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("kind", ["stage", "refused", "plan"])
def test_one_rank_of_two_fails(kind: str, tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    ranks(2).run(fail_and_go_on, tmp_path, kind)
    assert (tmp_path / ".metadata").exists()


def lose_a_rank(path: Path) -> str:
    """Rank 1 dies when it has planned; rank 0 waits for it in DCP's collective."""
    group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)

    class DyingPlanner(DefaultSavePlanner):
        def finish_plan(self, new_plan: SavePlan) -> SavePlan:
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().finish_plan(new_plan)

    began = time.monotonic()
    writer = GDSWriter(path, host_bytes_max=0)
    future = started({"w": torch.ones(MIB)}, writer, planner=DyingPlanner(), process_group=group)
    error = future.exception(LIMIT_S)
    assert time.monotonic() - began < GROUP_TIMEOUT.total_seconds() * 2
    writer.close()
    (path / "told").write_text(repr(error))
    return repr(error)


def test_a_rank_is_killed(tmp_path: Path) -> None:
    with Ranks(2) as pair, pytest.raises(RankError, match="rank 1 ended"):
        pair.run(lose_a_rank, tmp_path)
    assert (tmp_path / "told").read_text() != "None"
    assert not (tmp_path / ".metadata").exists()


def test_the_thread_dies_before_it_comes_to_the_writer(tmp_path: Path) -> None:
    state = {"w": torch.ones(MIB)}
    with GDSWriter(tmp_path) as writer:
        with warnings.catch_warnings():
            # DCP's warning that there is no process group is an error in the save's thread.
            warnings.simplefilter("error")
            future = started(state, writer)
            with pytest.raises(UserWarning, match="single process"):
                future.result(LIMIT_S)
        # What was staged then is nothing that a later save would take for its own.
        state["w"].fill_(2.0)
        started(state, writer).result(LIMIT_S)
    target = {"w": torch.zeros(MIB)}
    dcp_load(target, storage_reader=GDSReader(tmp_path))
    assert target["w"].eq(2.0).all()


def save_by_process(path: Path) -> list[int]:
    """Another process cannot tell when it has read the state."""
    # Ranks are daemons here, which may not have children.
    multiprocessing.current_process().daemon = False
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    weight = torch.ones(MIB)
    with GDSWriter(path) as writer:
        future = started(
            {"w": weight},
            writer,
            process_group=group,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        with pytest.raises(pickle.PicklingError, match=r"AsyncCheckpointerType\.THREAD"):
            future.result(LIMIT_S)
        assert not weight.untyped_storage().is_shared(), (
            "torch has moved the trainer's tensor to shared memory"
        )
        started({"w": weight}, writer, process_group=group).result(LIMIT_S)
    return [len(list(path.glob("*.distcp")))]


def test_another_process_is_refused_on_every_rank(tmp_path: Path) -> None:
    with Ranks(2) as pair:
        assert pair.run(save_by_process, tmp_path)


def test_a_writer_is_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(pickle.PicklingError, match="THREAD"):
        pickle.dumps(GDSWriter(tmp_path))


def test_saves_of_one_writer_wait_for_each_other(tmp_path: Path) -> None:
    weight = torch.ones(4 * MIB)
    committed: list[Path] = []
    futures = []
    with GDSWriter(tmp_path, overwrite=True, on_commit=committed.append) as writer:
        for step in range(4):
            weight.fill_(step)
            futures.append(started({"w": weight}, writer))
            assert all(future.done() for future in futures[:-1])
    assert all(future.done() for future in futures), "close has to wait"
    assert len(committed) == 4
    target = {"w": torch.zeros(4 * MIB)}
    dcp_load(target, storage_reader=GDSReader(tmp_path))
    assert target["w"].eq(3.0).all()


def test_a_failure_in_the_background_is_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with GDSWriter(tmp_path) as writer:
        future = started({"w": torch.ones(3)}, writer, checkpoint_id=tmp_path / "file")
        assert future.exception(LIMIT_S) is not None
        started({"w": torch.ones(3)}, writer, checkpoint_id=tmp_path / "good").result(LIMIT_S)
        assert caplog.text.count("the save before has failed") == 1
        assert str(tmp_path / "file") in caplog.text
        started({"w": torch.ones(3)}, writer, checkpoint_id=tmp_path / "next").result(LIMIT_S)
        assert caplog.text.count("the save before has failed") == 1


def test_a_full_disk_is_told_by_the_future(mounts: Mounts) -> None:
    path = mounts.directory("ext4")
    with GDSWriter(path, host_bytes_max=8 * MIB) as writer:
        future = started({"w": torch.ones(64 * MIB)}, writer)
        with refused(StorageFullError, path):
            future.result(LIMIT_S)
        assert list(path.iterdir()) == []
        started({"w": torch.ones(MIB)}, writer).result(LIMIT_S)


def test_a_drive_that_fails_is_told_by_the_future_and_at_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with GDSWriter(tmp_path / "bad", engine="direct") as writer:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fail)
            future = started({"w": torch.ones(MIB)}, writer)
            with refused(TransferError, tmp_path / "bad") as refusal:
                future.result(LIMIT_S)
        assert isinstance(refusal.error, TransferError)
        assert refusal.error.errno == errno.EIO
        assert not (tmp_path / "bad" / ".metadata").exists()
        started({"w": torch.ones(MIB)}, writer, checkpoint_id=tmp_path / "good").result(LIMIT_S)
        assert caplog.text.count("the save before has failed") == 1
        assert os.strerror(errno.EIO) in caplog.text


def test_a_save_after_the_writer_was_closed_fails(tmp_path: Path) -> None:
    writer = GDSWriter(tmp_path)
    writer.close()
    with refused(DcpGdsError, "closed"):
        started({"w": torch.ones(MIB)}, writer).result(LIMIT_S)
