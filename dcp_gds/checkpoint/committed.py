"""Committed: the metadata of a committed checkpoint, read safely."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from dcp_gds.checkpoint.commit import metadata_path
from dcp_gds.errors import DcpGdsError, NotCommittedError, TransferError
from dcp_gds.format.metadata import Trailer, load_metadata, split_metadata

__all__ = ["Committed", "UnreadableMetadata", "read_committed"]


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
        return _read(path, allow=allow)
    except NotCommittedError as error:
        if rank is None and any(directory.glob("__*.metadata")):
            raise
        return UnreadableMetadata(error)
    except DcpGdsError as error:
        return UnreadableMetadata(error)


def _read(path: Path, *, allow: Iterable[str]) -> Committed:
    """Read a metadata file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read()
    except FileNotFoundError as error:
        raise NotCommittedError(path.parent) from error
    except OSError as error:
        raise TransferError(
            error.errno or 0, f"cannot read the metadata: {error.strerror}", path
        ) from error
    pickled, trailer = split_metadata(data, path=path)
    return Committed(load_metadata(bytes(pickled), path=path, allow=allow), trailer)
