"""Stager: copies a state to host memory for an asynchronous save; leaves no rank waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch.distributed.checkpoint.staging import BlockingAsyncStager

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
            return super().stage(state_dict)
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

    What is sharded or a subclass is left to the planner: it may know how to resolve it.
    """
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        yield fqn, cast(torch.Tensor, value)
        return
    entries: Iterator[tuple[object, object]]
    if isinstance(value, Mapping):
        entries = iter(value.items())
    elif isinstance(value, list | tuple):
        entries = iter(enumerate(value))
    else:
        return
    for key, entry in entries:
        yield from _tensors(entry, f"{fqn}.{key}" if fqn else str(key))
