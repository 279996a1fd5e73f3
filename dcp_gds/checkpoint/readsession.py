"""Read session: what reading the items of one shard file has in common, small or large."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed.checkpoint.planner import LoadPlanner

from dcp_gds.checkpoint.filesession import FileSession
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent

__all__ = ["ReadSession"]


@dataclass(slots=True, eq=False)
class ReadSession(FileSession):
    """One shard file that items are loaded from, and what has come of it.

    Parameters
    ----------
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

    planner: LoadPlanner
    transfer_bytes: int
    strict_dtype: bool
    check_bytes: Callable[[str, io.BytesIO], None]
    when_loaded: Callable[[int], None]
    loaded: int = 0
    verified: int = 0

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
