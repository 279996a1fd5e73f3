"""Storage: a writer and a reader that belong together, ours and DCP's own, under one interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from dcp_gds import GDSReader, GDSWriter

__all__ = [
    "OURS",
    "PAIRS",
    "STOCK",
    "Storage",
    "dcp_load",
    "dcp_save",
    "load",
    "pair_name",
    "save",
]


@dataclass(frozen=True, slots=True)
class Storage:
    """One kind of storage: how its writer and its reader are made from a directory."""

    name: str
    writer: Callable[..., StorageWriter]
    reader: Callable[..., StorageReader]


OURS = Storage("ours", GDSWriter, GDSReader)
STOCK = Storage("stock", FileSystemWriter, FileSystemReader)
# Who saves and who loads. Stock to stock is DCP's own business.
PAIRS = ((OURS, OURS), (OURS, STOCK), (STOCK, OURS))


def pair_name(pair: tuple[Storage, Storage]) -> str:
    """Name of a pair in a test's id."""
    return f"{pair[0].name}-{pair[1].name}"


def save(
    state: dict[str, Any], path: Path, storage: Storage = OURS, /, **options: object
) -> Metadata:
    """Save `state` without a process group; `options` go to the writer."""
    return cast(
        Metadata, dcp_save(state, storage_writer=storage.writer(path, **options), no_dist=True)
    )


def load(state: dict[str, Any], path: Path, storage: Storage = OURS, /, **options: object) -> None:
    """Load into `state` without a process group; `options` go to the reader."""
    dcp_load(state, storage_reader=storage.reader(path, **options), no_dist=True)
