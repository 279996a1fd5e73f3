"""Read session: what reading the items of one shard file has in common, small or large."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.distributed.checkpoint.planner import LoadPlanner

from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent, round_down, round_up
from dcp_gds.io.engine import Operation, Transfer
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.staging import Slot, StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["ReadSession"]


@dataclass(slots=True, eq=False)
class ReadSession:
    """One shard file that is being read, and what has come of it.

    Parameters
    ----------
    file, file_length
        Open for reading; its length in bytes.
    planner
        DCP's; resolves targets and takes byte items.
    transfer_bytes
        Largest transfer.
    strict_dtype
        Whether a target of another dtype is an error.
    check_bytes
        Called with a byte item's name and content before the planner gets it.
    when_loaded
        Called with the payload bytes of each item that is complete.
    loaded, verified
        Payload bytes that were loaded, and how many of them were compared with a checksum.
    """

    file: ShardFile
    file_length: int
    queue: TransferQueue
    pool: StagingPool
    planner: LoadPlanner
    transfer_bytes: int
    strict_dtype: bool
    check_bytes: Callable[[str, io.BytesIO], None]
    when_loaded: Callable[[int], None]
    loaded: int = 0
    verified: int = 0
    _taken: set[Slot] = field(default_factory=set)

    def transfer(self, extent: Extent, address: int, *, checksum: bool) -> Transfer:
        """A read of an extent into memory."""
        return Transfer(Operation.READ, self.file, address, extent.length, extent.offset, checksum)

    def rounded(self, offset: int, end: int) -> Extent:
        """Round a range out to whole blocks, but not past the end of the file."""
        start = round_down(offset, alignment=self.file.alignment)
        end = min(round_up(end, alignment=self.file.alignment), self.file_length)
        return Extent(start, max(0, end - start) if end > offset else 0)

    def compare(self, item: LoadItem, block: Extent, expected: int, computed: int) -> None:
        """Compare a checksum with the stored one."""
        if computed != expected:
            raise CorruptCheckpointError(
                f"bytes [{block.offset}, {block.end}) have CRC-32 {computed:08x},"
                f" {expected:08x} is stored",
                self.file.path,
                offset=block.offset,
                fqn=item.fqn,
            )

    def finish_bytes(self, item: LoadItem, data: io.BytesIO, *, verified: bool) -> None:
        """Hand a byte item to the planner."""
        self.check_bytes(item.fqn, data)
        self.planner.load_bytes(item.read_item, data)
        self.count(item.payload.length, verified=verified)

    def count(self, loaded: int, *, verified: bool) -> None:
        """Count an item as complete."""
        self.loaded += loaded
        self.verified += loaded if verified else 0
        self.when_loaded(loaded)

    def take_slot(self) -> Slot:
        """Take a staging slot."""
        slot = self.queue.slot(self.pool)
        self._taken.add(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Give a staging slot back."""
        self._taken.discard(slot)
        self.pool.release(slot)

    def abandon(self) -> None:
        """Give back all slots after a failure. Nothing may be in flight any more."""
        for slot in self._taken:
            self.pool.release(slot)
        self._taken.clear()
