"""Stock reader: what a process without dcp_gds reads from a checkpoint. Its functions run there.

The process is a rank of its own (`tests.ranks`), where every import of dcp_gds is made to fail
before DCP is asked for anything.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from tests.checkpoint.rawbytes import raw

__all__ = ["Archive", "Loaded", "load_flat", "read_archives"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tensor as it was loaded: dtype by name, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Archive:
    """One tensor item of a shard file, as `torch.load` gives it.

    `values` are those of the tensor, `data` is its whole storage.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int
    conj: bool
    neg: bool
    grad: bool
    kind: str
    values: bytes
    data: bytes


def load_flat(path: Path) -> dict[str, object]:
    """Load the whole checkpoint; tensors as `Loaded`, other values as they are."""
    _forbid_dcp_gds()
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner(flatten_state_dict=False)  # type: ignore[no-untyped-call]  # torch has no types here
    _load_state_dict(state, storage_reader=FileSystemReader(path), planner=planner)
    return {fqn: _described(value) for fqn, value in _flat("", state)}


def read_archives(path: Path) -> dict[tuple[str, tuple[int, ...]], Archive]:
    """Read each tensor item by itself, keyed by fqn and offset of its shard."""
    _forbid_dcp_gds()
    metadata: Metadata = pickle.loads((path / ".metadata").read_bytes())
    archives = {}
    for index, info in metadata.storage_data.items():
        if index.offset is None:
            continue
        with (path / info.relative_path).open("rb") as file:
            file.seek(info.offset)
            item = file.read(info.length)
        tensor = torch.load(io.BytesIO(item), weights_only=True)
        archives[index.fqn, tuple(index.offset)] = Archive(
            dtype=str(tensor.dtype),
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            first=tensor.storage_offset(),
            conj=tensor.is_conj(),
            neg=tensor.is_neg(),
            grad=tensor.requires_grad,
            kind=type(tensor).__name__,
            values=raw(tensor),
            data=raw(torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())),
        )
    return archives


def _forbid_dcp_gds() -> None:
    """Make sure that nothing of dcp_gds is or can be imported in this process."""
    present = [name for name in sys.modules if name.startswith("dcp_gds.")]
    assert not present, present
    sys.modules["dcp_gds"] = None  # type: ignore[assignment]  # the documented way to block an import


def _flat(prefix: str, value: object) -> list[tuple[str, object]]:
    """Leaves of nested dicts and lists with dotted names."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return [(prefix, value)]
    return [
        leaf
        for key, child in pairs
        for leaf in _flat(f"{prefix}.{key}" if prefix else str(key), child)
    ]


def _described(value: object) -> object:
    """A tensor as `Loaded`; anything else unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return Loaded(str(value.dtype), tuple(value.shape), raw(value))
