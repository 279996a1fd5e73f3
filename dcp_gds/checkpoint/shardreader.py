"""Shard reader: reads the items of one shard file, in file order."""

from __future__ import annotations

from collections.abc import Iterable

from dcp_gds.checkpoint.largereader import LargeReader
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.readsession import ReadSession
from dcp_gds.checkpoint.runreader import RunReader

__all__ = ["read_items"]

# Up to here an item is read together with its neighbours and copied, as in saving.
_SMALL_BYTES_MAX = 256 << 10


def read_items(session: ReadSession, items: Iterable[LoadItem]) -> None:
    """Read items and hand them to the planner.

    After an error the caller abandons first the queue, then the session.

    Raises
    ------
    CorruptCheckpointError
        If a checksum disagrees; names the item, the file and the block. Targets may have been
        written to.
    TransferError
        If reading fails.
    """
    small: list[LoadItem] = []
    large: list[LoadItem] = []
    for item in sorted(items, key=lambda item: item.payload.offset):
        (small if item.payload.length <= _SMALL_BYTES_MAX else large).append(item)
    # GDSWriter puts small items in front of large ones, so this is the order of its files.
    RunReader(session).read(small)
    reader = LargeReader(session)
    for item in large:
        reader.read(item)
    session.queue.drain()
