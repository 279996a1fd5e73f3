"""Rank faults: what goes wrong on one rank in each step of a save, for the length of a block."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from dcp_gds import GDSWriter
from dcp_gds.checkpoint import shardsave
from dcp_gds.io.engine import Engine, EngineName
from tests.io.stepengine import StepEngine

__all__ = ["FAULTS", "Fault"]

# Less than any shard file here has.
FILE_BYTES_MAX = 4096
BAD = "bad.key"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and what every rank has to be told of it.

    Parameters
    ----------
    error, number, text
        Class and errno of the cause, and a part of its message.
    block
        Causes it in this process.
    value
        Has to be in the state.
    engine
        Of the writer.
    coordinator
        Whether only the coordinator takes this step.
    """

    error: str
    number: int | None
    text: str
    block: Callable[[], AbstractContextManager[Any]] = nullcontext
    value: torch.Tensor | None = None
    engine: str = "auto"
    coordinator: bool = False


@contextmanager
def _files_stay_small() -> Iterator[None]:
    """The kernel refuses longer files with EFBIG; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _raising(owner: object, name: str, error: BaseException) -> AbstractContextManager[Any]:
    """A function that only raises."""
    return mock.patch.object(owner, name, side_effect=error)


def _refusing(name: str, number: int, concerns: Callable[[Any], bool]) -> Any:
    """A function of `os` that fails for some of its first arguments."""
    function = getattr(os, name)

    def refuse(first: Any, *args: Any, **kwargs: Any) -> Any:
        if concerns(first):
            raise OSError(number, os.strerror(number), _path_of(first))
        return function(first, *args, **kwargs)

    return mock.patch.object(os, name, refuse)


def _path_of(first: Any) -> str:
    """What a descriptor or a path refers to."""
    return str(Path(f"/proc/self/fd/{first}").readlink()) if type(first) is int else str(first)


def _is_temporary(first: Any) -> bool:
    """Whether it is metadata that are not published yet."""
    return _path_of(first).endswith(".tmp")


def _is_directory(first: Any) -> bool:
    return Path(_path_of(first)).is_dir()


def _failing_engine() -> AbstractContextManager[Any]:
    """An engine whose third transfer fails with EIO."""

    def start(name: EngineName, *, queue_depth: int) -> Engine:
        return StepEngine(queue_depth=queue_depth, fail_at=2)

    return mock.patch.object(shardsave, "start_engine", start)


_IO = ("TransferError", errno.EIO, "cannot ")
FAULTS: dict[str, Fault] = {
    "value": Fault("UnsupportedError", None, BAD, value=torch.eye(3).to_sparse()),
    "set up": Fault(
        "ValueError",
        None,
        "by design",
        partial(_raising, GDSWriter, "set_up_storage_writer", ValueError("by design")),
    ),
    "local plan, planner": Fault(
        "ValueError",
        None,
        "by design",
        partial(_raising, DefaultSavePlanner, "create_local_plan", ValueError("by design")),
    ),
    "local plan, directory": Fault(
        "TransferError", errno.EACCES, "", partial(_refusing, "open", errno.EACCES, _is_directory)
    ),
    "global plan, planner": Fault(
        "ValueError",
        None,
        "by design",
        partial(_raising, DefaultSavePlanner, "create_global_plan", ValueError("by design")),
        coordinator=True,
    ),
    "write, planner": Fault(
        "MemoryError",
        None,
        "by design",
        partial(_raising, DefaultSavePlanner, "resolve_data", MemoryError("by design")),
    ),
    "write, no room": Fault("TransferError", errno.EFBIG, ".distcp", _files_stay_small),
    "write, transfer": Fault(
        "TransferError", errno.EIO, ".distcp", _failing_engine, engine="buffered"
    ),
    "sync, shard file": Fault(
        "TransferError",
        errno.EIO,
        ".distcp",
        partial(_refusing, "fdatasync", errno.EIO, lambda first: True),
    ),
    "sync, directory": Fault(*_IO, partial(_refusing, "fsync", errno.EIO, _is_directory)),
    "finish, lock": Fault(
        "TransferError",
        errno.EWOULDBLOCK,
        "another save is committing",
        partial(_raising, fcntl, "flock", BlockingIOError(errno.EWOULDBLOCK, "by design")),
        coordinator=True,
    ),
    "finish, metadata": Fault(
        *_IO, partial(_refusing, "fsync", errno.EIO, _is_temporary), coordinator=True
    ),
    "finish, no room": Fault(
        "StorageFullError",
        errno.ENOSPC,
        "cannot publish",
        partial(_refusing, "fsync", errno.ENOSPC, _is_temporary),
        coordinator=True,
    ),
    "finish, rename": Fault(
        *_IO, partial(_refusing, "rename", errno.EIO, _is_temporary), coordinator=True
    ),
}
