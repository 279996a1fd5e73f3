"""Load target: the tensor that a read item is loaded into, and how stored bytes get there."""

from __future__ import annotations

import warnings

import torch
from torch.distributed.checkpoint.planner import LoadPlanner

from dcp_gds.checkpoint.box import Box, Slab
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.errors import ConfigError

__all__ = ["LoadTarget", "check_dtype"]


def check_dtype(fqn: str, stored: torch.dtype, target: torch.dtype, *, strict: bool) -> None:
    """Say when a load changes the dtype, which `Tensor.copy_` does silently.

    Raises
    ------
    ConfigError
        If `strict`.
    """
    if stored == target:
        return
    message = (
        f"{fqn}: the checkpoint holds {stored}, the target is {target}:"
        " values are converted, which may lose precision"
    )
    if strict:
        raise ConfigError(
            f"{message}; load into a tensor of the stored dtype, or pass strict_dtype=False"
        )
    warnings.warn(message, UserWarning, stacklevel=2)


class LoadTarget:
    """Where a read item goes.

    Parameters
    ----------
    item
        Of a tensor.
    planner
        Gives the tensor, and is told when it is complete.
    """

    def __init__(self, item: LoadItem, planner: LoadPlanner, *, strict_dtype: bool) -> None:
        assert item.stored is not None
        assert item.place is not None
        self._item = item
        self._planner = planner
        self._stored = item.stored
        self._tensor = planner.resolve_tensor(item.read_item).detach()
        sizes = tuple(item.read_item.lengths)
        if tuple(self._tensor.size()) != sizes:
            raise ConfigError(
                f"{item.fqn}: the planner's tensor has size {tuple(self._tensor.size())}, the read"
                f" item {sizes}"
            )
        check_dtype(item.fqn, item.stored.dtype, self._tensor.dtype, strict=strict_dtype)
        self.box = item.place.box

    @property
    def tensor(self) -> torch.Tensor:
        """The target, detached."""
        return self._tensor

    @property
    def address(self) -> int | None:
        """Address to read the box's bytes to; None if they have to be rearranged or converted."""
        stored, tensor = self._stored, self._tensor
        same = (
            # A subclass may keep its bytes elsewhere, or nowhere.
            type(tensor) is torch.Tensor
            and stored.dtype == tensor.dtype
            and tensor.device.type == "cpu"
            and not (stored.conj or stored.neg or tensor.is_conj() or tensor.is_neg())
            and self.box.span == self.box.length
            and _same_order(self.box, tensor)
        )
        return tensor.data_ptr() if same else None

    def put(self, slab: Slab, memory: torch.Tensor) -> None:
        """Copy a slab into the target; `memory` holds its `slab.length` bytes as 1-D uint8."""
        if not slab.length:
            return
        itemsize = self.box.itemsize
        if memory.storage_offset() % itemsize:
            # A stock writer packs archives without alignment; torch views memory only at whole
            # elements.
            memory = memory.clone()
        strides = [stride // itemsize for stride in self.box.strides]
        source = memory.view(self._stored.dtype).as_strided(slab.sizes, strides)
        if self._stored.conj:
            source = source.conj()
        if self._stored.neg:
            source = source.negative()
        target = self._tensor
        for dim, (start, size) in enumerate(zip(slab.starts, slab.sizes, strict=True)):
            if size != target.size(dim):
                target = target.narrow(dim, start, size)
        target.copy_(source)

    def commit(self) -> None:
        """Tell the planner that the tensor is complete."""
        self._planner.commit_tensor(self._item.read_item, self._tensor)


def _same_order(box: Box, tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements lie in memory exactly as the box's do in the file."""
    return all(
        size == 1 or stride == target * box.itemsize
        for size, stride, target in zip(box.sizes, box.strides, tensor.stride(), strict=True)
    )
