"""Rank write: the items of one rank, written to its shard file, and the report of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from dcp_gds.checkpoint.blocked import Phase
from dcp_gds.checkpoint.currentsave import CurrentSave
from dcp_gds.checkpoint.report import SaveReport
from dcp_gds.checkpoint.saveitem import look_at_items
from dcp_gds.checkpoint.shardlayout import lay_out
from dcp_gds.checkpoint.shardsave import ShardOutcome, save_shard_file
from dcp_gds.checkpoint.sourceorder import SourceOrder, order_sources
from dcp_gds.checkpoint.writeresult import write_results
from dcp_gds.config import WriterOptions
from dcp_gds.format.envelope import EnvelopeCache
from dcp_gds.io.arena import Arena
from dcp_gds.io.staging import StagingPool

__all__ = ["write_rank"]


def write_rank(
    save: CurrentSave,
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
    selection = save.selection
    assert selection is not None, "the engine is selected before the plan is made"
    envelopes.renew()
    items = look_at_items(
        plan,
        planner,
        alignment=selection.alignment,
        envelopes=envelopes,
        held_bytes_max=options.staging_bytes_max,
    )
    order = SourceOrder(items, {}, copied_bytes=0, direct_bytes=0)
    if save.sources is not None:
        save.sources.enter(Phase.COPY)
        order = order_sources(
            items,
            planner,
            sources=save.sources,
            arena=arena,
            bytes_max=host_bytes_max - save.sources.copied_bytes,
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
        name = f"__{save.rank}_0-{save.token}.distcp"
        outcome = save_shard_file(
            save.path / name,
            shard,
            planner,
            token=save.token,
            selection=selection,
            options=options,
            pool=pool,
            progress=progress,
            after=after,
        )
        results = write_results(name, shard, outcome.footer_crc32, rank=save.rank)
    report = SaveReport(
        path=str(save.path),
        token=save.token,
        rank=save.rank,
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
        unsynced_reason=save.unsynced_reason,
        host_bytes_max=host_bytes_max,
        copied_bytes=order.copied_bytes + (save.sources.copied_bytes if save.sources else 0),
        direct_bytes=order.direct_bytes,
        durable_seconds=save.sources.age_seconds if save.sources else time.perf_counter() - began,
    )
    return results, report
