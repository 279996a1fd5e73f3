"""Solo: saves and loads by DCP as one rank, and the state that they move."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from dcp_gds.checkpoint.reader import GDSReader
from dcp_gds.checkpoint.writer import GDSWriter

__all__ = ["State", "async_save", "load", "make_state", "save"]

State = dict[str, torch.Tensor]


def make_state(*, length: int, tensors: int, memory_bytes: int | None = None) -> State:
    """Random float32 tensors of `length` bytes together, each in memory of its own.

    With `memory_bytes` as many of them share memory as it takes to need no more: DCP saves each.
    """
    elements = length // tensors // 4
    owners = tensors
    if memory_bytes is not None:
        owners = min(tensors, max(1, memory_bytes // (elements * 4)))
    owned = [torch.rand(elements) for _ in range(owners)]
    return {f"tensor_{number:05}": owned[number % owners] for number in range(tensors)}


def save(state: State, writer: StorageWriter) -> None:
    """Save as one rank. GDSWriter is closed too, as its user has to do."""
    with _closing(writer), _alone():
        state_dict_saver.save(state, storage_writer=writer, no_dist=True)


def async_save(state: State, writer: StorageWriter) -> float:
    """Save as one rank in the background, wait for it, and return how long the caller was held.

    The save has ended even when the wait is interrupted: whoever removes its directory then must
    not meet it.
    """
    began = time.perf_counter()
    with _closing(writer), _alone():
        answer: Any = state_dict_saver.async_save(state, storage_writer=writer, no_dist=True)
        blocked_s = time.perf_counter() - began
        future = answer if isinstance(answer, Future) else answer.upload_completion
        try:
            future.result()
        finally:
            wait([future])
    return blocked_s


def load(state: State, reader: StorageReader) -> None:
    """Load into the tensors of `state`, as one rank."""
    with _closing(reader), _alone():
        state_dict_loader.load(state, storage_reader=reader, no_dist=True)


@contextlib.contextmanager
def _closing(plugin: StorageWriter | StorageReader) -> Iterator[None]:
    """Close what is ours, as its user has to do; stock's have nothing to close."""
    try:
        yield
    finally:
        if isinstance(plugin, GDSWriter | GDSReader):
            plugin.close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """DCP warns of a single process even where it was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
