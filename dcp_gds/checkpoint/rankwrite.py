"""Rank write: the items of one rank, written to its shard file, and the report of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from dcp_gds.checkpoint.blocked import Phase
from dcp_gds.checkpoint.report import SaveReport
from dcp_gds.checkpoint.saveitem import look_at_items
from dcp_gds.checkpoint.shardlayout import lay_out
from dcp_gds.checkpoint.shardsave import ShardOutcome, save_shard_file
from dcp_gds.checkpoint.sourceorder import SourceOrder, order_sources
from dcp_gds.checkpoint.sources import Sources
from dcp_gds.checkpoint.writeresult import write_results
from dcp_gds.config import WriterOptions
from dcp_gds.format.envelope import EnvelopeCache
from dcp_gds.io.arena import Arena
from dcp_gds.io.selection import Selection
from dcp_gds.io.staging import StagingPool

__all__ = ["RankTask", "write_rank"]


@dataclass(frozen=True, slots=True)
class RankTask:
    """Which save this is; `sources` only if it is an asynchronous one."""

    path: Path
    token: str
    rank: int
    selection: Selection
    sources: Sources | None


def write_rank(
    task: RankTask,
    plan: SavePlan,
    planner: SavePlanner,
    *,
    options: WriterOptions,
    envelopes: EnvelopeCache,
    pool: StagingPool,
    arena: Arena,
    host_bytes_max: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[WriteResult], SaveReport]:
    """Write a rank's items to one shard file and sync it.

    Raises what `save_shard_file` raises; nothing of the save is left behind then.
    """
    began = time.perf_counter()
    selection = task.selection
    envelopes.renew()
    items = look_at_items(
        plan,
        planner,
        alignment=selection.alignment,
        envelopes=envelopes,
        held_bytes_max=options.staging_bytes_max,
    )
    order = SourceOrder(items, {}, copied_bytes=0, direct_bytes=0)
    if task.sources is not None:
        task.sources.enter(Phase.COPY)
        order = order_sources(
            items,
            planner,
            sources=task.sources,
            arena=arena,
            bytes_max=host_bytes_max - task.sources.copied_bytes,
            alignment=selection.alignment,
        )
    shard = lay_out(
        order.items, alignment=selection.alignment, block_length=options.checksum_block_bytes
    )
    after = dict(order.after)
    # Not after the file has been made: the trainer would wait for that too.
    if first := after.pop(0, None):
        first()
    results: list[WriteResult] = []
    outcome = ShardOutcome()
    if items:
        name = f"__{task.rank}_0-{task.token}.distcp"
        outcome = save_shard_file(
            task.path / name,
            shard,
            planner,
            token=task.token,
            selection=selection,
            options=options,
            pool=pool,
            progress=progress,
            after=after,
        )
        results = write_results(name, shard, outcome.footer_crc32, rank=task.rank)
    report = SaveReport(
        path=str(task.path),
        token=task.token,
        rank=task.rank,
        engine=selection.engine,
        engine_reason=selection.reason,
        fallbacks=selection.fallbacks,
        items=len(items),
        files=1 if items else 0,
        bytes=sum(item.payload_length for item in items),
        bytes_by_engine={selection.engine: outcome.moved} if items else {},
        seconds=time.perf_counter() - began,
        staging_bytes_peak=pool.peak_bytes + arena.peak_bytes,
        retries=outcome.retries,
        sync_seconds=outcome.sync_seconds,
        checksums=options.checksum,
        synced=options.sync,
        host_bytes_max=host_bytes_max,
        copied_bytes=order.copied_bytes + (task.sources.copied_bytes if task.sources else 0),
        direct_bytes=order.direct_bytes,
        durable_seconds=task.sources.age_seconds if task.sources else time.perf_counter() - began,
    )
    return results, report
