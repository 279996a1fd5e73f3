"""Contenders: the writers and readers that are compared, and the state that they move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.benchmark.solo import State, load, make_state, save

__all__ = [
    "OURS",
    "OURS_READING_STOCK",
    "OURS_UNCHECKED",
    "READERS",
    "STOCK",
    "STOCK_ALL",
    "UNVERIFIED",
    "WRITERS",
    "State",
    "load",
    "make_state",
    "save",
]

MakeWriter = Callable[[Path], StorageWriter]
MakeReader = Callable[[Path], StorageReader]


def _stock_writer(path: Path, *, thread_count: int) -> StorageWriter:
    return FileSystemWriter(path, thread_count=thread_count, sync_files=True)


OURS = "GDSWriter"
OURS_UNCHECKED = "GDSWriter, checksum=False"
STOCK = "FileSystemWriter"
STOCK_ALL = (STOCK, "FileSystemWriter, 2 threads", "FileSystemWriter, 4 threads")
WRITERS: Mapping[str, MakeWriter] = {
    OURS: GDSWriter,
    OURS_UNCHECKED: partial(GDSWriter, checksum=False),
    STOCK_ALL[0]: partial(_stock_writer, thread_count=1),
    STOCK_ALL[1]: partial(_stock_writer, thread_count=2),
    STOCK_ALL[2]: partial(_stock_writer, thread_count=4),
}

UNVERIFIED = "GDSReader, verify=False"
OURS_READING_STOCK = "GDSReader of a stock checkpoint"
# Each with the writer of what it reads.
READERS: Mapping[str, tuple[MakeReader, str]] = {
    "GDSReader": (GDSReader, OURS),
    UNVERIFIED: (partial(GDSReader, verify=False), OURS),
    OURS_READING_STOCK: (GDSReader, STOCK),
    "FileSystemReader": (FileSystemReader, STOCK),
}
