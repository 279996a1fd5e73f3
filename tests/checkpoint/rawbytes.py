"""Raw bytes: tensors made of chosen bytes, and the bytes of a tensor, so that equality means bits.

`torch.equal` calls NaN unequal to itself and does not exist for some dtypes; bytes have neither
problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

__all__ = ["dense_tensor", "filled_tensor", "raw"]

# What a target holds before a load: a byte that the load leaves alone shows up in the comparison.
FILLER = 0xA5


def raw(tensor: torch.Tensor) -> bytes:
    """Bytes of the values of `tensor` in row-major order, conj and neg views resolved."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def dense_tensor(shape: Sequence[int], dtype: torch.dtype, *, seed: int = 0) -> torch.Tensor:
    """Contiguous tensor of random bits, so that a float dtype holds NaNs of many payloads."""
    generator = torch.Generator().manual_seed(seed)
    length = math.prod(shape) * dtype.itemsize
    data = torch.randint(0, 256, (length,), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:  # any other byte than 0 and 1 is undefined in a bool
        data &= 1
    return data.view(dtype).reshape(tuple(shape))


def filled_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Contiguous tensor whose every byte is a filler that no test saves throughout."""
    filler = 1 if dtype is torch.bool else FILLER
    data = torch.full((math.prod(shape) * dtype.itemsize,), filler, dtype=torch.uint8)
    return data.view(dtype).reshape(tuple(shape))
