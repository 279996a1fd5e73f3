"""State copy: a state whose small and mutable parts are copies and whose large ones are live."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.tensor import DTensor

from dcp_gds.checkpoint.saveitem import COPIED_LENGTH_MAX, check_tensor
from dcp_gds.errors import UnsupportedError
from dcp_gds.io.device import accelerator_of, device_of

__all__ = ["StateCopy", "ThreadOnlyState", "copy_state"]

_IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)


class ThreadOnlyState(dict[str, Any]):
    """A state that a thread of this process has to save.

    Pickling it would move live tensors to shared memory under the trainer, and another process
    could not tell when they have been read.
    """

    def __init__(self, state: Mapping[str, Any], when_pickled: Callable[[], None]) -> None:
        super().__init__(state)
        self._when_pickled = when_pickled

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._when_pickled()
        raise pickle.PicklingError(
            "GDSWriter reads the state from this process's memory, so it cannot save in another"
            " one: use AsyncCheckpointerType.THREAD, the default"
        )


@dataclass(slots=True)
class StateCopy:
    """What `copy_state` made.

    Parameters
    ----------
    state
        The state to save.
    live
        Addresses of the storages that were not copied.
    copied_bytes
        Bytes of the tensors that were.
    """

    state: dict[str, Any] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    copied_bytes: int = 0


def copy_state(state: Mapping[str, Any], *, copied_bytes_max: int) -> StateCopy:
    """Copy containers, objects and small tensors, up to `copied_bytes_max` bytes of the last.

    Raises
    ------
    UnsupportedError
        If a tensor cannot be saved; names it.
    """
    copied = StateCopy()
    copied.state = cast(
        dict[str, Any], _copied(state, "", made=copied, copied_bytes_max=copied_bytes_max)
    )
    return copied


def _copied(value: object, fqn: str, *, made: StateCopy, copied_bytes_max: int) -> object:
    """Copy a part of the state; `fqn` is the name that DCP's planner will give it."""
    if isinstance(value, torch.Tensor):
        return _copied_tensor(value, fqn, made=made, copied_bytes_max=copied_bytes_max)
    if isinstance(value, Mapping):
        return {
            key: _copied(
                entry,
                f"{fqn}.{key}" if fqn else str(key),
                made=made,
                copied_bytes_max=copied_bytes_max,
            )
            for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        entries = [
            _copied(entry, f"{fqn}.{place}", made=made, copied_bytes_max=copied_bytes_max)
            for place, entry in enumerate(value)
        ]
        return tuple(entries) if isinstance(value, tuple) else entries
    if isinstance(value, _IMMUTABLE):
        return value
    if isinstance(value, io.BytesIO):
        stream = io.BytesIO(value.getvalue())
        stream.seek(value.tell())
        return stream
    return copy.deepcopy(value)


def _copied_tensor(
    value: torch.Tensor, fqn: str, *, made: StateCopy, copied_bytes_max: int
) -> object:
    """Copy a tensor that is small, or whose device only torch can read."""
    if isinstance(value, ShardedTensor):
        # DCP's own, and rare: torch's copy of it is complete.
        made.copied_bytes += sum(shard.tensor.nbytes for shard in value.local_shards())
        return _copied_by_torch(value)
    local = check_tensor(value.to_local() if isinstance(value, DTensor) else value, fqn=fqn)
    try:
        device_of(local)
        on_accelerator = accelerator_of(local) is not None
    except UnsupportedError:
        on_accelerator = True
    if on_accelerator:
        made.copied_bytes += local.nbytes
        return _copied_by_torch(value)
    length = local.nbytes
    if length > COPIED_LENGTH_MAX or made.copied_bytes + length > copied_bytes_max:
        made.live.add(local.untyped_storage().data_ptr())
        return value
    made.copied_bytes += length
    return value.detach().clone()


def _copied_by_torch(value: object) -> object:
    """A copy in host memory, as torch's own stager makes it."""
    return BlockingAsyncStager().stage({"": value})[""]
