"""File session: one shard file that is being read, and the staging slots that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcp_gds.format.extent import Extent, round_down, round_up
from dcp_gds.io.engine import Operation, Transfer
from dcp_gds.io.shardfile import ShardFile
from dcp_gds.io.staging import Slot, StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["FileSession"]


@dataclass(slots=True, eq=False)
class FileSession:
    """What reading one shard file needs, whatever its bytes are for.

    Parameters
    ----------
    file, file_length
        Open for reading; its length in bytes.
    queue, pool
        Move the bytes, and hold them; neither is closed here.
    """

    file: ShardFile
    file_length: int
    queue: TransferQueue
    pool: StagingPool
    _taken: set[Slot] = field(default_factory=set, init=False)

    def transfer(self, extent: Extent, address: int, *, checksum: bool) -> Transfer:
        """A read of an extent into memory."""
        return Transfer(Operation.READ, self.file, address, extent.length, extent.offset, checksum)

    def rounded(self, offset: int, end: int) -> Extent:
        """Round a range out to whole blocks, but not past the end of the file."""
        start = round_down(offset, alignment=self.file.alignment)
        end = min(round_up(end, alignment=self.file.alignment), self.file_length)
        return Extent(start, max(0, end - start) if end > offset else 0)

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
