"""Current save: what belongs to the save at hand."""

from __future__ import annotations

from dataclasses import dataclass

from dcp_gds.checkpoint.savegroup import SaveGroup
from dcp_gds.checkpoint.sources import Sources
from dcp_gds.io.selection import Selection

__all__ = ["CurrentSave"]


@dataclass(frozen=True, slots=True)
class CurrentSave:
    """A save, from DCP's first call on this rank to its last.

    Parameters
    ----------
    token
        Names this save among all others.
    rank, use_collectives
        As DCP has told them.
    selection
        The engine; None before DCP has told the rank.
    sources
        What an asynchronous save has yet to read; None of a save whose caller waits for all of it.
    group
        What an asynchronous save shares with its peers; None without peers.
    """

    token: str
    rank: int = 0
    use_collectives: bool = True
    selection: Selection | None = None
    sources: Sources | None = None
    group: SaveGroup | None = None

    @property
    def metadata_rank(self) -> int | None:
        """The rank whose own metadata file is written; None for the checkpoint's."""
        return None if self.use_collectives else self.rank
