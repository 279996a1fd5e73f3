"""Write result: what a rank tells the coordinator about an item it wrote."""

from __future__ import annotations

import dataclasses
import socket

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.storage import WriteResult

from dcp_gds.checkpoint import commit
from dcp_gds.checkpoint.shardlayout import ShardLayout
from dcp_gds.format.metadata import ShardFileRecord

__all__ = ["ShardWriteResult", "write_results"]


@dataclasses.dataclass(frozen=True)
class ShardWriteResult(WriteResult):
    """A write result; the first of each shard file also tells the coordinator about the file."""

    shard_file: commit.ShardFileResult | None = None


def write_results(
    name: str, shard: ShardLayout, footer_crc32: int, *, rank: int
) -> list[WriteResult]:
    """One result for each item; the first carries the shard file's record."""
    record = ShardFileRecord(name, shard.file_length, footer_crc32)
    shard_file = commit.ShardFileResult(record, rank, socket.gethostname())
    results: list[WriteResult] = [
        WriteResult(
            item.write_item.index,
            placement.length,
            _StorageInfo(name, placement.offset, placement.length),
        )
        for item, placement in zip(shard.items, shard.placements, strict=True)
    ]
    first = results[0]
    results[0] = ShardWriteResult(
        first.index, first.size_in_bytes, first.storage_data, shard_file=shard_file
    )
    return results
