"""Shard path: where a shard file is that metadata name, nowhere else than below the checkpoint."""

from __future__ import annotations

from pathlib import Path

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.metadata import safe_relative_path

__all__ = ["shard_path"]


def shard_path(directory: Path, name: str) -> Path:
    """Return the path of a shard file, which need not be there.

    Whoever opens the file follows no link in the last place; here the directories on the way are
    looked at. With one of them a link, a checkpoint could have any file read, and the next save
    remove it as one of the old checkpoint's.

    Raises
    ------
    CorruptCheckpointError
        If the name leads elsewhere.
    """
    path = directory / safe_relative_path(name, path=directory)
    for parent in path.parents[: name.count("/")]:
        if parent.is_symlink():
            raise CorruptCheckpointError(
                f"the metadata name a file behind the symbolic link {parent}", path
            )
    return path
