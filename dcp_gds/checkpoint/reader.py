"""Reader: DCP's StorageReader for any checkpoint in the stock format, past the page cache."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from dcp_gds.checkpoint.claimedsize import check_claimed_size
from dcp_gds.checkpoint.committed import Committed, UnreadableMetadata, read_committed
from dcp_gds.checkpoint.loadrun import LoadRun
from dcp_gds.checkpoint.report import LoadReport
from dcp_gds.config import (
    QUEUE_DEPTH_DEFAULT,
    STAGING_BYTES_DEFAULT,
    STAGING_SLOT_BYTES,
    TRANSFER_BYTES_DEFAULT,
    ReaderOptions,
)
from dcp_gds.errors import ConfigError, CorruptCheckpointError
from dcp_gds.io.staging import StagingPool

__all__ = ["GDSReader"]


class GDSReader(StorageReader):
    """Loads a checkpoint in the stock DCP format, whoever wrote it.

    Give it to `torch.distributed.checkpoint.load` on every rank. Only the byte ranges that the plan
    needs are read, and a contiguous target of the stored dtype is read into directly. One reader
    may be used for many loads, one at a time.

    Parameters
    ----------
    path
        Directory of the checkpoint. `checkpoint_id=` of a load replaces it.
    engine
        "auto" takes the best engine that works there and reports why a better one does not.
        "direct" and "buffered" demand one.
    verify
        Compare what is read with the stored checksums, rounding reads out to whole checksum blocks.
        A stock checkpoint has one CRC-32 for each tensor, which is compared where all of it is
        read.
    strict_dtype
        Raise where a target's dtype differs from the stored one. Otherwise values are converted,
        with a warning.
    trusted
        False refuses items that are not tensors unless `torch.load(weights_only=True)` accepts
        them. The default is as trusting as DCP itself, whose planner unpickles them whatever they
        are: load such checkpoints only from who you trust.
    allow
        Names ("module.Class") that `.metadata` may refer to besides DCP's own, for custom planners.
    staging_bytes_max
        Most host memory for staging slots, in bytes.
    queue_depth, transfer_bytes
        Transfers in flight, and the largest one in bytes, a power of two.
    progress
        Called with (bytes done, bytes in total) of this rank's payload as items are complete.

    Raises
    ------
    ConfigError
        If an option has a wrong value.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: str = "auto",
        verify: bool = True,
        strict_dtype: bool = False,
        trusted: bool = True,
        allow: Iterable[str] = (),
        staging_bytes_max: int = STAGING_BYTES_DEFAULT,
        queue_depth: int = QUEUE_DEPTH_DEFAULT,
        transfer_bytes: int = TRANSFER_BYTES_DEFAULT,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__()
        self._options = ReaderOptions(
            engine=engine,
            staging_bytes_max=staging_bytes_max,
            queue_depth=queue_depth,
            transfer_bytes=transfer_bytes,
            verify=verify,
            strict_dtype=strict_dtype,
            trusted=trusted,
        )
        self._path = Path(path)
        self._allow = frozenset(allow)
        self._progress = progress
        self._pool: StagingPool | None = None
        self._committed: Committed | None = None
        self._rank = 0
        self._metadata_rank: int | None = None
        self._report: LoadReport | None = None
        self._closed = False

    @property
    def report(self) -> LoadReport | None:
        """What the last load did on this rank; None before one has read its data."""
        return self._report

    @property
    def checkpoint_id(self) -> str:
        """The directory that is read from."""
        return os.fspath(self._path)

    def close(self) -> None:
        """Give back staging memory. May be called twice; a load after it raises ConfigError."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> GDSReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any local path will do; an address of a remote store will not."""
        return "://" not in os.fspath(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._committed = None
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read `.metadata`, or one rank's own where DCP asks for it.

        DCP answers any error raised here by trying rank-local metadata, which an older save may
        have left, and reports an AssertionError in the end. So an error is raised here only when
        there are such files; else it is kept in the returned metadata and raised as it is at their
        first use.

        Raises
        ------
        NotCommittedError
            If only rank-local metadata are there.
        """
        if self._closed:
            return UnreadableMetadata(ConfigError(f"the reader of {self._path} is closed"))
        self._report = None
        self._metadata_rank = kwargs.get("rank")
        read = read_committed(self._path, rank=self._metadata_rank, allow=self._allow)
        if isinstance(read, UnreadableMetadata):
            return read
        try:
            check_claimed_size(read.metadata, self._path)
        except CorruptCheckpointError as error:
            return UnreadableMetadata(error)
        self._committed = read
        metadata = read.metadata
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(metadata, UnreadableMetadata):
            raise metadata.error
        if self._committed is None or self._committed.metadata is not metadata:
            # A caller that read the metadata by other means: nothing is known of footers.
            self._committed = Committed(metadata, None)
        self._rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell the coordinator which checkpoint this rank has read the metadata of.

        Rank-local metadata are of as many saves as there are ranks, and cannot be compared.
        """
        token = self._current().token if self._metadata_rank is None else None
        return dataclasses.replace(plan, storage_data=token)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse to go on when ranks have read the metadata of different checkpoints."""
        tokens = {plan.storage_data for plan in plans}
        if len(tokens) > 1:
            raise CorruptCheckpointError(
                "ranks have read the metadata of different checkpoints, with tokens"
                f" {sorted(map(str, tokens))}: it was overwritten while being loaded; load again",
                self._path,
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this rank's items into their targets.

        Raises
        ------
        CorruptCheckpointError
            With item, file and offset. Targets that were already read keep what was read.
        ConfigError
            If a dtype differs and `strict_dtype` is set; no target has been touched.
        TransferError, UnsupportedError
            With path, extent and errno, or the item's name.
        """
        began = time.perf_counter()
        pool = self._staging_pool()
        with contextlib.closing(
            LoadRun(
                self._path,
                self._current(),
                planner,
                metadata_rank=self._metadata_rank,
                allow=self._allow,
                options=self._options,
                pool=pool,
                progress=self._progress,
            )
        ) as run:
            run.read(plan.items)
            self._report = LoadReport(
                path=self.checkpoint_id,
                token=self._current().token,
                rank=self._rank,
                engine=run.engine,
                engine_reason=run.engine_reason,
                fallbacks=run.fallbacks,
                items=len(plan.items),
                files=run.files,
                bytes=run.loaded,
                bytes_by_engine=run.bytes_by_engine,
                seconds=time.perf_counter() - began,
                staging_bytes_peak=pool.peak_bytes,
                retries=run.retries,
                verified_bytes=run.verified,
                unverified_bytes=run.loaded - run.verified,
            )
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _current(self) -> Committed:
        """The checkpoint at hand; DCP has begun by `read_metadata`."""
        assert self._committed is not None, "DCP calls set_up_storage_reader first"
        return self._committed

    def _staging_pool(self) -> StagingPool:
        """The pool of staging slots, kept from load to load."""
        if self._pool is None:
            self._pool = StagingPool(
                slot_bytes=STAGING_SLOT_BYTES, bytes_max=self._options.staging_bytes_max
            )
        return self._pool
