"""Current save: what belongs to the save at hand."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.checkpoint.savegroup import SaveGroup
from dcp_gds.checkpoint.sources import Sources
from dcp_gds.errors import ConfigError
from dcp_gds.io.selection import Selection

__all__ = ["CurrentSave"]


@dataclass(frozen=True, slots=True)
class CurrentSave:
    """A save, from DCP's first call on this rank to its last.

    Parameters
    ----------
    path
        Directory of the checkpoint.
    token
        Names this save among all others.
    thread
        Identity of the thread that makes it.
    rank, use_collectives
        As DCP has told them.
    selection
        The engine; None before DCP has told the rank.
    unsynced_reason
        As in `SaveReport`.
    sources
        What an asynchronous save has yet to read; None of a save whose caller waits for all of it.
    group
        What an asynchronous save shares with its peers; None without peers.
    """

    path: Path
    token: str
    thread: int
    rank: int = 0
    use_collectives: bool = True
    selection: Selection | None = None
    unsynced_reason: str = ""
    sources: Sources | None = None
    group: SaveGroup | None = None

    @classmethod
    def begin(cls, path: Path, *, sources: Sources | None) -> CurrentSave:
        """Begin a save on the calling thread, under a token of its own."""
        return cls(path, secrets.token_hex(16), threading.get_ident(), sources=sources)

    def check_thread(self) -> None:
        """Refuse to go on with a save that another thread has begun.

        Otherwise the first of two saves would be finished under the second one's path and token.

        Raises
        ------
        ConfigError
            If the calling thread is not the one that began it.
        """
        if self.thread != threading.get_ident():
            raise ConfigError(
                f"another thread has begun a save to {self.path} with this writer before this save"
                " was over: give each its own GDSWriter"
            )

    @property
    def metadata_rank(self) -> int | None:
        """The rank whose own metadata file is written; None for the checkpoint's."""
        return None if self.use_collectives else self.rank
