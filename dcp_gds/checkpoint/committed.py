"""Committed: the metadata of a committed checkpoint, read safely."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from dcp_gds.checkpoint.commit import metadata_path
from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import DcpGdsError, NotCommittedError, TransferError
from dcp_gds.format.extent import Extent
from dcp_gds.format.metadata import Trailer, load_metadata, split_metadata
from dcp_gds.io.fileerror import file_error

__all__ = [
    "Committed",
    "UnreadableMetadata",
    "metadata_files",
    "read_committed",
    "read_metadata_file",
]

# Written instead of `.metadata` by ranks that save with `use_collectives=False`.
_RANK_METADATA_NAME = re.compile(r"__(0|[1-9][0-9]*)\.metadata")


@dataclass(frozen=True, slots=True)
class Committed:
    """Metadata, and the trailer behind them; None for a checkpoint of a stock writer."""

    metadata: Metadata
    trailer: Trailer | None

    @property
    def token(self) -> str | None:
        """Names this checkpoint among all others."""
        return None if self.trailer is None else self.trailer.token


class UnreadableMetadata(Metadata):
    """Stands for metadata that could not be read; raises the error when a planner looks into it."""

    def __init__(self, error: DcpGdsError) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict_metadata", "planner_data", "storage_data"):
            raise self.error
        return super().__getattribute__(name)


def read_committed(
    directory: Path, *, rank: int | None, allow: Iterable[str]
) -> Committed | UnreadableMetadata:
    """Read a checkpoint's metadata, or one rank's.

    Raises
    ------
    NotCommittedError
        If the file is missing, but rank-local ones are there, which DCP tries next.
    """
    path = metadata_path(directory, rank=rank)
    try:
        return read_metadata_file(path, allow=allow)
    except NotCommittedError as error:
        if rank is None and any(directory.glob("__*.metadata")):
            raise
        return UnreadableMetadata(error)
    except DcpGdsError as error:
        return UnreadableMetadata(error)


def metadata_files(directory: Path) -> list[Path]:
    """The metadata files that DCP would read: the common one, or else those of the ranks, by rank.

    Raises
    ------
    NotCommittedError
        If there are none.
    TransferError
        If the directory cannot be read.
    """
    try:
        names = {entry.name for entry in directory.iterdir()}
    except OSError as error:
        raise file_error(error, directory) from error
    common = metadata_path(directory, rank=None)
    if common.name in names:
        return [common]
    matches = map(_RANK_METADATA_NAME.fullmatch, names)
    ranks = sorted(int(match[1]) for match in matches if match)
    if not ranks:
        raise NotCommittedError(directory)
    return [metadata_path(directory, rank=rank) for rank in ranks]


def read_metadata_file(path: Path, *, allow: Iterable[str]) -> Committed:
    """Read a metadata file.

    Raises
    ------
    NotCommittedError
        If it is not there.
    TransferError
        If it cannot be read; a symbolic link is not followed, and a FIFO not waited for.
    CorruptCheckpointError, UnsupportedError
        If it is damaged, or names a class that is not allowed.
    """
    try:
        with SideReader(path) as file:
            data = file.read(Extent(0, file.length))
    except TransferError as error:
        if error.errno == errno.ENOENT:
            raise NotCommittedError(path.parent) from error
        raise
    pickled, trailer = split_metadata(data, path=path)
    return Committed(load_metadata(bytes(pickled), path=path, allow=allow), trailer)
