"""Contenders: the writers and readers that are compared, and the state that they move."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from dcp_gds import GDSReader, GDSWriter

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

State = dict[str, torch.Tensor]
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


def make_state(*, length: int, tensors: int) -> State:
    """Random float32 tensors of `length` bytes together, each in memory of its own."""
    elements = length // tensors // 4
    return {f"tensor_{number:05}": torch.rand(elements) for number in range(tensors)}


def save(state: State, writer: StorageWriter) -> None:
    """Save as one rank. GDSWriter is closed too, as its user has to do."""
    with _alone():
        state_dict_saver.save(state, storage_writer=writer, no_dist=True)
    if isinstance(writer, GDSWriter):
        writer.close()


def load(state: State, reader: StorageReader) -> None:
    """Load into the tensors of `state`, as one rank."""
    with _alone():
        state_dict_loader.load(state, storage_reader=reader, no_dist=True)
    if isinstance(reader, GDSReader):
        reader.close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """DCP warns of a single process even where it was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
