"""Packing: a tensor's elements in row-major order, a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dcp_gds.io.device import Device, device_of

__all__ = ["packed_pieces"]

# Any dtype is copied bit for bit as integers of its size; some dtypes have no copy kernel of their
# own.
_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def packed_pieces(tensor: torch.Tensor, *, bytes_max: int) -> Iterator[torch.Tensor]:
    """Yield contiguous tensors that hold the elements of `tensor`, one behind the other.

    Each holds at most `bytes_max` bytes, and lazy conjugate and negative bits have been carried
    out. Where nothing has to be rearranged a piece is a view.
    """
    if not (tensor.is_conj() or tensor.is_neg()) and tensor.itemsize in _INTEGER_OF_SIZE:
        tensor = tensor.view(_INTEGER_OF_SIZE[tensor.itemsize])
    yield from _pieces(tensor, device_of(tensor), bytes_max=bytes_max)


def _pieces(tensor: torch.Tensor, device: Device, *, bytes_max: int) -> Iterator[torch.Tensor]:
    """Cut along the first dimension, and below it where a single row is too long."""
    if tensor.nbytes <= bytes_max:
        yield device.pack(tensor)
        return
    row_bytes = tensor.nbytes // tensor.size(0)
    if row_bytes > bytes_max:
        for row in tensor:
            yield from _pieces(row, device, bytes_max=bytes_max)
        return
    step = bytes_max // row_bytes
    for start in range(0, tensor.size(0), step):
        rows = tensor.narrow(0, start, min(step, tensor.size(0) - start))
        yield device.pack(rows)
