"""Load run: reads the items of a plan, shard file by shard file."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from dcp_gds.checkpoint.committed import Committed, read_committed
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.loadtarget import check_dtype
from dcp_gds.checkpoint.locator import Envelopes, Locator
from dcp_gds.checkpoint.readsession import ReadSession
from dcp_gds.checkpoint.shardpath import shard_path
from dcp_gds.checkpoint.shardreader import read_items
from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.checkpoint.streamitem import load_streamed
from dcp_gds.config import ReaderOptions
from dcp_gds.errors import (
    CorruptCheckpointError,
    NotCommittedError,
    TransferError,
    UnsupportedError,
)
from dcp_gds.io.engine import EngineName
from dcp_gds.io.fileerror import file_error
from dcp_gds.io.selection import Selection, select_for_load, start_engine
from dcp_gds.io.shardfile import ShardFile, open_shard_file
from dcp_gds.io.staging import StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["LoadRun"]


class LoadRun:
    """One rank's part of a load. Its attributes tell afterwards what was done.

    Parameters
    ----------
    directory, committed
        The checkpoint.
    planner
        DCP's; resolves targets and takes byte items.
    metadata_rank, allow
        How the metadata were read: see `read_committed`.
    pool
        Of staging slots; not closed here.
    progress
        Called with payload bytes done and in total.
    """

    def __init__(
        self,
        directory: Path,
        committed: Committed,
        planner: LoadPlanner,
        *,
        metadata_rank: int | None,
        allow: frozenset[str],
        options: ReaderOptions,
        pool: StagingPool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.files = 0
        self.loaded = 0
        self.verified = 0
        self._directory = directory
        self._committed = committed
        self._records = {
            record.name: record
            for record in (committed.trailer.shard_files if committed.trailer else ())
        }
        self._planner = planner
        self._metadata_rank = metadata_rank
        self._allow = allow
        self._options = options
        self._pool = pool
        self._progress = progress
        self._total = 0
        self._done = 0
        self._side_moved = 0
        self._selection: Selection | None = None
        self._queue: TransferQueue | None = None

    @property
    def engine(self) -> str:
        """The engine that was selected; "none" when there was nothing to read."""
        return "none" if self._selection is None else self._selection.engine

    @property
    def engine_reason(self) -> str:
        """Why this engine."""
        return "nothing to read" if self._selection is None else self._selection.reason

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why a better path was not taken."""
        return () if self._selection is None else self._selection.fallbacks

    @property
    def retries(self) -> int:
        """Transfers that were resumed."""
        return 0 if self._queue is None else self._queue.retries

    @property
    def bytes_by_engine(self) -> dict[str, int]:
        """Bytes that were asked of the kernel. Footers and envelopes go through the page cache."""
        moved = {EngineName.BUFFERED.value: self._side_moved} if self._side_moved else {}
        if self._queue is not None:
            moved[self.engine] = moved.get(self.engine, 0) + self._queue.moved
        return moved

    def read(self, read_items: Sequence[ReadItem]) -> None:
        """Find all items, so that what is wrong is known before a target is touched; then read."""
        storage = self._committed.metadata.storage_data
        by_file: dict[str, list[ReadItem]] = {}
        for read_item in read_items:
            info = storage.get(read_item.storage_index)
            if info is None:
                raise CorruptCheckpointError(
                    "the metadata do not say where it is",
                    self._directory,
                    fqn=read_item.storage_index.fqn,
                )
            by_file.setdefault(info.relative_path, []).append(read_item)
        envelopes = Envelopes()
        located = {
            self._path_of(name): self._locate(name, by_file[name], envelopes)
            for name in sorted(by_file)
        }
        items = [item for of_file in located.values() for item in of_file]
        if self._options.strict_dtype:
            self._check_dtypes(items)
        self._total = sum(item.length for item in items)
        for path, of_file in located.items():
            with self._told_if_gone(path):
                self._read_file(path, of_file)

    def close(self) -> None:
        """End the engine."""
        if self._queue is not None:
            self._queue.engine.close()

    def _path_of(self, name: str) -> Path:
        """Path of a shard file that the metadata name."""
        return shard_path(self._directory, name)

    def _locate(
        self, name: str, read_items: list[ReadItem], envelopes: Envelopes
    ) -> list[LoadItem]:
        """Find the items of one shard file."""
        storage = self._committed.metadata.storage_data
        record = self._records.get(name)
        if record is None and self._committed.trailer is not None:
            raise CorruptCheckpointError(
                "items are said to be in this file, which the metadata's trailer does not name",
                self._path_of(name),
            )
        path = self._path_of(name)
        with self._told_if_gone(path), SideReader(path) as side:
            locator = Locator(
                side,
                record=record,
                metadata=self._committed.metadata,
                envelopes=envelopes,
                verify=self._options.verify,
            )
            items = [
                locator.locate(read_item, storage[read_item.storage_index])
                for read_item in read_items
            ]
            self._side_moved += side.moved
        return items

    @contextlib.contextmanager
    def _told_if_gone(self, path: Path) -> Iterator[None]:
        """Say what it means when a shard file is not there, or not any more, to be opened."""
        try:
            yield
        except TransferError as error:
            if error.errno != errno.ENOENT:
                raise
            if self._is_overwritten():
                raise CorruptCheckpointError(
                    "the checkpoint was overwritten while it was being loaded; load again", path
                ) from error
            raise CorruptCheckpointError(
                "the metadata name this shard file, but it is not there; if every rank saved to a"
                " drive of its own, load on the node that wrote it",
                path,
            ) from error

    def _is_overwritten(self) -> bool:
        """Whether the metadata are now those of another save; False if that cannot be known."""
        try:
            now = read_committed(self._directory, rank=self._metadata_rank, allow=self._allow)
        except NotCommittedError:
            return False
        return isinstance(now, Committed) and now.token != self._committed.token

    def _check_dtypes(self, items: list[LoadItem]) -> None:
        """Raise for a target of another dtype before any target is touched."""
        for item in items:
            if item.stored is not None:
                target = self._planner.resolve_tensor(item.read_item)
                check_dtype(item.fqn, item.stored.dtype, target.dtype, strict=True)

    def _read_file(self, path: Path, items: list[LoadItem]) -> None:
        """Read the items of one shard file."""
        self.files += 1
        for item in items:
            if item.transform_descriptors:
                with SideReader(path) as side:
                    load_streamed(
                        item,
                        side.view(item.item),
                        self._planner,
                        strict_dtype=self._options.strict_dtype,
                        check_bytes=self._check_bytes,
                    )
                    self._side_moved += side.moved
                self.loaded += item.payload.length
                self._advance(item.payload.length)
        plain = [item for item in items if not item.transform_descriptors]
        if not plain:
            return
        if self._queue is None:
            self._selection = select_for_load(path, requested=self._options.engine)
            engine = start_engine(self._selection.engine, queue_depth=self._options.queue_depth)
            self._queue = TransferQueue(engine)
        direct = self.engine == EngineName.DIRECT
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_shard_file(path, direct=direct))
            session = ReadSession(
                file,
                _length_of(file),
                self._queue,
                self._pool,
                self._planner,
                self._options.transfer_bytes,
                self._options.strict_dtype,
                self._check_bytes,
                self._advance,
            )
            # In this order: nothing may be in flight when the slots are given back.
            stack.callback(session.abandon)
            stack.callback(self._queue.abandon)
            read_items(session, plain)
        self.loaded += session.loaded
        self.verified += session.verified

    def _check_bytes(self, fqn: str, data: io.BytesIO) -> None:
        """Refuse what only a full unpickling would load, unless the checkpoint is trusted."""
        if self._options.trusted:
            return
        try:
            torch.load(data, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            raise UnsupportedError(
                f"{fqn}: torch.load(weights_only=True) refuses it, and the checkpoint is not"
                f" trusted: {error}; pass trusted=True if you trust whoever wrote it"
            ) from error
        data.seek(0)

    def _advance(self, loaded: int) -> None:
        """Report progress."""
        self._done += loaded
        if self._progress is not None:
            self._progress(self._done, self._total)


def _length_of(file: ShardFile) -> int:
    """Length of an open file."""
    try:
        return os.fstat(file.fd).st_size
    except OSError as error:
        raise file_error(error, file.path) from error
