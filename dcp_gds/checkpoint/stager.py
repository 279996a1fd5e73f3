"""Stager: copies a state to host memory for an asynchronous save; leaves no rank waiting."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from dcp_gds.checkpoint.saveitem import check_tensor
from dcp_gds.errors import DcpGdsError, UnsupportedError

__all__ = ["CopyStager"]


class CopyStager(BlockingAsyncStager):
    """Copies everything while the caller waits.

    When staging fails on one rank, the others have gone on to plan the save, and would wait there
    for ever. So `stage` does not raise: it keeps the error, and the plan of the rank fails with it,
    which DCP tells all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stage_error: DcpGdsError | None = None

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy the state to host memory, so that training may change it while it is saved."""
        self._stage_error = None
        try:
            for fqn, tensor in _tensors(state_dict, ""):
                check_tensor(tensor, fqn=fqn)
            return cast(dict[str, Any], _with_copied_bytes(super().stage(state_dict)))
        except DcpGdsError as error:
            self._stage_error = error
        except Exception as error:  # noqa: BLE001  # whatever torch raises, peers must not wait
            self._stage_error = UnsupportedError(
                f"the state cannot be copied for the save: {error}"
            )
        return state_dict

    def take_stage_error(self) -> DcpGdsError | None:
        """Return what went wrong in the last `stage`, once."""
        error, self._stage_error = self._stage_error, None
        return error


def _tensors(value: object, fqn: str) -> Iterator[tuple[str, torch.Tensor]]:
    """All plain tensors of a nested state, with the names that DCP's planner will give them.

    Copying makes plain tensors of all subclasses, so those have to be refused before. Shards are
    DCP's own; what is plain inside a DTensor is looked at.
    """
    if isinstance(value, DTensor):
        yield fqn, value.to_local()
    elif isinstance(value, torch.Tensor) and not isinstance(value, ShardedTensor):
        yield fqn, value
    for key, entry in _entries(value):
        yield from _tensors(entry, f"{fqn}.{key}" if fqn else str(key))


def _entries(value: object) -> Iterator[tuple[object, object]]:
    """What is in a container, with its keys or places."""
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _with_copied_bytes(value: object) -> object:
    """The state with a copy of each BytesIO, which torch's staging passes on as it is."""
    if isinstance(value, io.BytesIO):
        copy = io.BytesIO(value.getvalue())
        copy.seek(value.tell())
        return copy
    if type(value) is dict:
        return {key: _with_copied_bytes(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        entries = [_with_copied_bytes(entry) for _, entry in _entries(value)]
        return entries if type(value) is list else tuple(entries)
    return value
