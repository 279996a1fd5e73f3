"""Demo saver: asynchronous saves by writers that take turns, and how long training waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import StorageWriter

from dcp_gds import GDSWriter
from dcp_gds.cli.demo_events import EventPipe, SaveDone, Writing
from dcp_gds.cli.demo_settings import RankTask, WriterName

__all__ = ["Saver"]

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class _Pending:
    """A save that runs."""

    writer: WriterName
    step: int
    began: float
    launch_seconds: float
    alone: bool
    future: Future[Metadata]
    # Filled by the save's own thread, because nobody else is there when it ends.
    ended: list[float] = field(default_factory=list)


class Saver:
    """Saves a training state every now and then, one save at a time.

    Parameters
    ----------
    task
        The rank's task; names the directory and the writers.
    pipe
        Where results go.
    """

    def __init__(self, task: RankTask, pipe: EventPipe) -> None:
        self._task = task
        self._pipe = pipe
        # FSDP2 trains on the default group: collectives of a save thread in between would meet
        # those of the training thread, and both would wait for ever.
        self._group = dist.new_group(backend="gloo")
        self._writers = {
            name: _make_writer(name, Path(task.directory), progress=self._send_progress)
            for name in task.writers
        }
        self._turns = 0
        self._step = 0
        self._pending: _Pending | None = None

    def save(self, state: dict[str, Any], *, step: int, alone: bool = False) -> None:
        """Begin to save the state, after waiting for the save before."""
        self.collect(wait=True)
        name = self._next_writer()
        self._step = step
        label = f"alone-{self._turns:02d}" if alone else f"step-{step:06d}"
        began = time.perf_counter()
        future = async_save(
            state,
            checkpoint_id=Path(self._task.directory, f"{name}-{label}"),
            storage_writer=self._writers[name],
            process_group=self._group,
        )
        assert isinstance(future, Future), "neither writer stages on another thread"
        self._pending = _Pending(name, step, began, time.perf_counter() - began, alone, future)
        self._pending.future.add_done_callback(_note_end(self._pending))

    def collect(self, *, wait: bool) -> None:
        """Report the save that runs if it has ended, or once it has.

        A wait counts as blocked time of that save: it was too slow for the next one.
        """
        pending = self._pending
        if pending is None or not (wait or pending.future.done()):
            return
        began = time.perf_counter()
        metadata = pending.future.result()
        now = time.perf_counter()
        self._pending = None
        engine, fallbacks = _taken_path(self._writers[pending.writer])
        self._pipe.send(
            SaveDone(
                rank=self._task.rank,
                step=pending.step,
                writer=pending.writer,
                engine=engine,
                fallbacks=fallbacks,
                bytes=_payload_bytes(metadata),
                seconds=(pending.ended[0] if pending.ended else now) - pending.began,
                blocked_seconds=pending.launch_seconds + (now - began),
                alone=pending.alone,
            )
        )

    def save_alone(self, state: dict[str, Any], *, step: int) -> None:
        """Save the state as often as the task says, each save with nothing beside it."""
        # Turns begin again, so that each writer gets the same number of them.
        self._turns = 0
        for _ in range(self._task.alone_saves * len(self._writers)):
            self.collect(wait=True)
            # One rank's wait for another is not part of a save.
            dist.barrier()
            self.save(state, step=step, alone=True)

    def close(self) -> None:
        """Wait for the last save and give back the writers' memory."""
        self.collect(wait=True)
        for writer in self._writers.values():
            if isinstance(writer, GDSWriter):
                writer.close()

    def _next_writer(self) -> WriterName:
        """Turns go A B, B A, A B, ...: so that neither always comes first in what drifts."""
        names = self._task.writers
        pair, turn = divmod(self._turns, len(names))
        self._turns += 1
        return names[turn] if pair % 2 == 0 else names[-1 - turn]

    def _send_progress(self, done_bytes: int, total_bytes: int) -> None:
        """The writer's `progress` callback."""
        self._pipe.send(Writing(self._task.rank, self._step, done_bytes, total_bytes))


def _make_writer(name: WriterName, path: Path, *, progress: Progress) -> StorageWriter:
    """A writer as its users make it: both sync what they write by default."""
    if name == "stock":
        return FileSystemWriter(path)
    return GDSWriter(path, progress=progress)


def _taken_path(writer: StorageWriter) -> tuple[str, tuple[str, ...]]:
    """The engine that moved the bytes, and why no better one did."""
    if isinstance(writer, GDSWriter):
        report = writer.report
        assert report is not None, "a finished save has one"
        return report.engine, report.fallbacks
    return "page cache", ()


def _note_end(pending: _Pending) -> Callable[[Future[Metadata]], None]:
    """A callback for the save's future that keeps the time."""
    return lambda _: pending.ended.append(time.perf_counter())


def _payload_bytes(metadata: Metadata) -> int:
    """Bytes of all chunks of all tensors in a checkpoint."""
    return sum(
        chunk.sizes.numel() * stored.properties.dtype.itemsize
        for stored in metadata.state_dict_metadata.values()
        if isinstance(stored, TensorStorageMetadata)
        for chunk in stored.chunks
    )
