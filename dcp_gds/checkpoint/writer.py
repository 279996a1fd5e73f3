"""Writer: DCP's StorageWriter that puts shards straight on the drive."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from dcp_gds.checkpoint import commit
from dcp_gds.checkpoint.currentsave import CurrentSave
from dcp_gds.checkpoint.directory import create_directory
from dcp_gds.checkpoint.rankwrite import write_rank
from dcp_gds.checkpoint.report import SaveReport, with_blocked
from dcp_gds.checkpoint.savecommit import commit_save
from dcp_gds.checkpoint.stager import LazyStager
from dcp_gds.config import (
    QUEUE_DEPTH_DEFAULT,
    STAGING_BYTES_DEFAULT,
    STAGING_SLOT_BYTES,
    TRANSFER_BYTES_DEFAULT,
    WriterOptions,
    directory_option,
)
from dcp_gds.errors import ConfigError
from dcp_gds.format.envelope import EnvelopeCache
from dcp_gds.hostmem.watch import HostMemoryWatch
from dcp_gds.io.selection import select_for_save
from dcp_gds.io.staging import StagingPool

__all__ = ["GDSWriter"]


class GDSWriter(StorageWriter, LazyStager):
    """Writes a checkpoint in the stock DCP format, past the page cache, and commits it atomically.

    Give it to `torch.distributed.checkpoint.save` or `async_save` on every rank. The stock
    `FileSystemReader` loads what it wrote without dcp_gds. One writer may be used for many saves,
    one at a time.

    Parameters
    ----------
    path
        Directory of the checkpoint, made if it is missing. All ranks share it. `checkpoint_id=` of
        a save replaces it.
    engine
        "auto" takes the best engine that works there and reports why a better one does not.
        "direct" and "buffered" demand one.
    overwrite
        Whether a committed checkpoint may be replaced. Both have to fit: the old one is removed
        after the new one has been committed. What killed and failed saves have left there is
        removed then too, in any save.
    checksum
        Compute CRC-32s in the pass that writes.
    sync
        Make all durable before committing. Without it a power cut may lose or tear the checkpoint.
    staging_bytes_max
        Most host memory for staging slots, in bytes.
    host_bytes_max
        Most host memory, in bytes, for copies of the state in `async_save`, besides the slots. What
        does not fit is written from its own memory while the caller waits. Default: all that
        `budget` leaves.
    host_memory_fraction
        Share of the host's memory, or of the cgroup's limit, for all ranks of the node together.
        Default: the environment's DCP_GDS_HOST_MEMORY_FRACTION, else 0.4.
    queue_depth, transfer_bytes
        Transfers in flight, and the largest one in bytes, a power of two.
    progress
        Called with (bytes done, bytes in total) of this rank's shard file as its transfers are
        done.
    watch
        Samples the host's memory during each save; the writer has its own if none is given.
    on_commit
        Called with the directory on the coordinator, once the checkpoint is durable. What it
        raises becomes a warning: the checkpoint is there.

    Raises
    ------
    ConfigError
        If an option has a wrong value or asks for more host memory than the budget has, or the path
        is the address of a remote store.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: str = "auto",
        overwrite: bool = False,
        checksum: bool = True,
        sync: bool = True,
        staging_bytes_max: int = STAGING_BYTES_DEFAULT,
        host_bytes_max: int | None = None,
        host_memory_fraction: float | None = None,
        queue_depth: int = QUEUE_DEPTH_DEFAULT,
        transfer_bytes: int = TRANSFER_BYTES_DEFAULT,
        progress: Callable[[int, int], None] | None = None,
        on_commit: Callable[[Path], None] | None = None,
        watch: HostMemoryWatch | None = None,
    ) -> None:
        self._options = WriterOptions(
            engine=engine,
            staging_bytes_max=staging_bytes_max,
            host_bytes_max=host_bytes_max,
            host_memory_fraction=host_memory_fraction,
            queue_depth=queue_depth,
            transfer_bytes=transfer_bytes,
            overwrite=overwrite,
            checksum=checksum,
            sync=sync,
        )
        LazyStager.__init__(self, self._options)
        self._path = directory_option(path)
        self._progress = progress
        self._on_commit = on_commit
        self._watch = HostMemoryWatch() if watch is None else watch
        self._envelopes = EnvelopeCache(checksum=checksum)
        self._pool: StagingPool | None = None
        self._save: CurrentSave | None = None
        self._report: SaveReport | None = None
        self._closed = False

    @property
    def report(self) -> SaveReport | None:
        """What the last save did on this rank; None before one has written its data."""
        if self._report is None or self._save is None or self._save.sources is None:
            return self._report
        return with_blocked(self._report, self._save.sources.blocked())

    @property
    def checkpoint_id(self) -> str:
        """The directory that is written to."""
        return os.fspath(self._path)

    def close(self) -> None:
        """Wait for an asynchronous save and give back all staging memory.

        May be called twice; a save after it raises ConfigError.
        """
        self._closed = True
        self._wait_for_save_before()
        self._watch.abandon_save()
        self._arena.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> GDSWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any local path will do; an address of a remote store will not."""
        return "://" not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP calls this only when a save names a `checkpoint_id`."""
        with self._failing(self._enter_save()):
            if checkpoint_id is not None:
                self._path = directory_option(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        """DCP's first call of every save on every rank: draws the token that names its files."""
        sources = self._enter_save()
        with self._failing(sources):
            if self._closed:
                raise ConfigError(f"the writer of {self._path} is closed")
            if sources is not None and sources.error is not None:
                raise sources.error
        self._report = None
        self._save = CurrentSave.begin(self._path, sources=sources)
        self._watch.begin_save(follow=False)
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save.token)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        save = self._current_save()
        self._save = dataclasses.replace(
            save,
            rank=kwargs.get("rank") or 0,
            use_collectives=kwargs.get("use_collectives", True),
            group=self._group_of(save.sources),
        )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Create the directory, refuse to replace a checkpoint unasked, and select the engine."""
        save = self._current_save()
        with self._failing(save.sources):
            unsynced_reason = create_directory(save.path, sync=self._options.sync)
            commit.check_replaceable(
                save.path, rank=save.metadata_rank, overwrite=self._options.overwrite
            )
            selection = select_for_save(save.path, requested=self._options.engine)
        self._save = dataclasses.replace(save, selection=selection, unsynced_reason=unsynced_reason)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans  # Nothing of ours travels in plans: plan caching would replay it.

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items to one shard file and sync it.

        Raises
        ------
        StorageFullError
            Before the first payload byte, if the filesystem has no room for the whole file.
        TransferError, UnsupportedError
            With path, extent and errno, or the item's name. Nothing of this save is left behind.
        """
        save = self._current_save()
        future: Future[list[WriteResult]] = Future()
        began = time.perf_counter()
        self._watch.follow_save()
        try:
            future.set_result(self._write(save, plan, planner))
        finally:  # However it ends, the thread that samples must not go on.
            memory = self._watch.end_save(
                staging_bytes=self._options.staging_bytes_max,
                engine=save.selection.engine if save.selection else None,
                path=os.fspath(save.path),
            )
        assert self._report is not None, "what was written has been reported"
        self._report = dataclasses.replace(self._report, host_memory=memory)
        if save.group is not None:
            self._warn(save.group.warning_after(write_s=time.perf_counter() - began))
        return future

    def _write(self, save: CurrentSave, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """Write the items and report it."""
        with self._failing(save.sources):
            results, self._report = write_rank(
                save,
                plan,
                planner,
                options=self._options,
                envelopes=self._envelopes,
                pool=self._staging_pool(),
                arena=self._arena,
                host_bytes_max=self.host_bytes_max if save.sources else 0,
                progress=self._progress,
            )
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish `.metadata`, on the coordinator, or on every rank without collectives.

        Raises what `commit_save` raises; the old checkpoint is still there then.
        """
        save = self._current_save()
        began = time.perf_counter()
        with self._failing(save.sources):
            removal = commit_save(
                save.path,
                metadata,
                [result for of_rank in results for result in of_rank],
                token=save.token,
                rank=save.metadata_rank,
                options=self._options,
            )
        if self._report is not None:
            seconds = time.perf_counter() - began
            self._report = dataclasses.replace(
                self._report,
                committed=True,
                files_removed=removal.removed,
                files_kept=removal.kept,
                metadata_seconds=seconds,
                durable_seconds=save.sources.age_seconds
                if save.sources
                else self._report.durable_seconds + seconds,
            )
        if self._on_commit is not None:
            commit.call_back(self._on_commit, save.path)

    def _directory(self) -> str:
        return self.checkpoint_id

    def _current_save(self) -> CurrentSave:
        """The save at hand; DCP has begun it by `storage_meta`."""
        assert self._save is not None, "DCP calls storage_meta before anything else"
        self._save.check_thread()
        return self._save

    def _staging_pool(self) -> StagingPool:
        """The pool of staging slots, kept from save to save."""
        if self._pool is None:
            self._pool = StagingPool(
                slot_bytes=STAGING_SLOT_BYTES, bytes_max=self._options.staging_bytes_max
            )
        return self._pool
