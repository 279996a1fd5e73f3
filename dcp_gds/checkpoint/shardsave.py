"""Shard save: one shard file from creation to sync; after a failure nothing of it is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.planner import SavePlanner

from dcp_gds.checkpoint.directory import sync_directory
from dcp_gds.checkpoint.shardlayout import ShardLayout
from dcp_gds.checkpoint.shardwriter import ShardWriter
from dcp_gds.config import WriterOptions
from dcp_gds.io.engine import EngineName
from dcp_gds.io.selection import Selection, start_engine
from dcp_gds.io.shardfile import create_shard_file, remove_file
from dcp_gds.io.staging import StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["ShardOutcome", "save_shard_file"]


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What was done for a shard file; all zero for a rank that has none."""

    footer_crc32: int = 0
    moved: int = 0
    retries: int = 0
    sync_seconds: float = 0.0


def save_shard_file(
    path: Path,
    shard: ShardLayout,
    planner: SavePlanner,
    *,
    token: str,
    selection: Selection,
    options: WriterOptions,
    pool: StagingPool,
    progress: Callable[[int, int], None] | None,
    after: Mapping[int, Callable[[], None]] | None = None,
) -> ShardOutcome:
    """Create, preallocate, write and sync a shard file; `after` is `ShardWriter.write`'s.

    Raises
    ------
    StorageFullError
        Before the first payload byte, if there is no room for the whole file.
    TransferError, UnsupportedError
        The file has been removed again, and neither thread nor descriptor is left.
    """
    done = 0

    def count(moved: int) -> None:
        nonlocal done
        done += moved
        if progress is not None:
            progress(done, shard.allocated_length)

    with contextlib.ExitStack() as stack:
        file = create_shard_file(path, direct=selection.engine is EngineName.DIRECT)
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(remove_file, path)
        stack.enter_context(file)
        file.allocate(shard.allocated_length)
        engine = start_engine(selection.engine, queue_depth=options.queue_depth)
        stack.callback(engine.close)
        queue = TransferQueue(engine, on_moved=count)
        writer = ShardWriter(
            shard,
            file,
            queue=queue,
            pool=pool,
            token=token,
            transfer_bytes=options.transfer_bytes,
            checksum=options.checksum,
            held_bytes_max=options.staging_bytes_max,
        )
        # In this order: nothing may be in flight when the slots are given back.
        stack.callback(writer.abandon)
        stack.callback(queue.abandon)
        footer_crc32 = writer.write(planner, after=after or {})
        file.truncate(shard.file_length)
        sync_seconds = 0.0
        if options.sync:
            began = time.perf_counter()
            file.sync()
            sync_directory(path.parent)
            sync_seconds = time.perf_counter() - began
        # Some filesystems report a failed write only when the file is closed.
        file.close()
        undo.pop_all()
    return ShardOutcome(footer_crc32, queue.moved, queue.retries, sync_seconds)
