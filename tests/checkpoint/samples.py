"""Samples: the dtypes that DCP itself can save, and tensors of every layout a state may hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.storage import STOCK, load, save

__all__ = ["LAYOUTS", "TARGETS", "saveable_dtypes"]

Maker = Callable[[], torch.Tensor]

FLOATS = dense_tensor((6, 8), torch.float32, seed=1)
COMPLEX = dense_tensor((6, 8), torch.complex64, seed=2)
IMAGES = dense_tensor((2, 3, 4, 5), torch.float32, seed=3)


@cache
def saveable_dtypes() -> tuple[torch.dtype, ...]:
    """Dtypes whose bytes come back unchanged through DCP's own writer and reader on this torch."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return tuple(sorted((dtype for dtype in found if _stock_keeps(dtype)), key=str))


def _stock_keeps(dtype: torch.dtype) -> bool:
    """Whether DCP's own storage gives back the bytes of a tensor of this dtype."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            source, target = dense_tensor((16,), dtype), filled_tensor((16,), dtype)
            save({"x": source}, Path(directory), STOCK, overwrite=False)
            load({"x": target}, Path(directory), STOCK)
        except BaseException:  # noqa: BLE001  DCP raises a BaseException, torch anything
            return False
        return raw(source) == raw(target)


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return FLOATS * 2


def _hooked() -> torch.Tensor:
    tensor = FLOATS.clone().requires_grad_()
    tensor.register_hook(lambda grad: grad)  # type: ignore[no-untyped-call]  # torch has no types
    return tensor


def _shared() -> torch.Tensor:
    tensor = FLOATS.clone()
    tensor.untyped_storage().share_memory_()
    return tensor


def _attributed() -> torch.Tensor:
    tensor = FLOATS.clone()
    tensor.note = object()  # type: ignore[attr-defined]  # what frameworks hang on tensors
    return tensor


# Each is called for a new tensor: what is loaded into must not be what another test saves.
LAYOUTS: dict[str, Maker] = {
    "scalar": lambda: torch.tensor(-0.0),
    "scalar-view": lambda: FLOATS[2, 3],
    "empty": lambda: torch.empty(0),
    "empty-0x5": lambda: torch.empty(0, 5),
    "empty-5x0x2": lambda: torch.empty(5, 0, 2, dtype=torch.int16),
    "empty-view": lambda: FLOATS[3:3],
    "contiguous": FLOATS.clone,
    "transposed": lambda: FLOATS.clone().t(),
    "permuted": lambda: IMAGES.clone().permute(3, 0, 2, 1),
    "channels-last": lambda: IMAGES.contiguous(memory_format=torch.channels_last),
    "channels-last-1": lambda: IMAGES[:, :1].contiguous(memory_format=torch.channels_last),
    "channels-last-3d": lambda: dense_tensor((2, 3, 4, 5, 6), torch.float16).contiguous(
        memory_format=torch.channels_last_3d
    ),
    "strided": lambda: FLOATS[::2, ::3],
    "columns": lambda: FLOATS[:, 2:5],
    "rows": lambda: FLOATS[2:4],
    "small-of-large": lambda: dense_tensor((1 << 18,), torch.float32)[1001:1013],
    "expanded": lambda: FLOATS[0].expand(3, 8),
    "expanded-scalar": lambda: torch.tensor(1.5).expand(4, 5),
    "overlapping": lambda: FLOATS.as_strided((4, 5), (1, 1)),
    "overlapping-rows": lambda: FLOATS.as_strided((4, 5), (3, 1), 2),
    "odd-stride-of-1": lambda: FLOATS.clone().as_strided((6, 1, 8), (8, 999, 1)),
    "conj": lambda: COMPLEX.clone().conj(),
    "conj-transposed": lambda: COMPLEX.clone().mH,
    "conj-strided": COMPLEX[:, ::2].conj,
    "neg": lambda: torch._neg_view(FLOATS.clone()),
    "neg-imag": lambda: COMPLEX.clone().conj().imag,
    "conj-neg": lambda: torch._neg_view(COMPLEX.clone()).conj(),
    "real": lambda: COMPLEX.clone().real,
    "as-real": lambda: torch.view_as_real(COMPLEX.clone()),
    "requires-grad": lambda: FLOATS.clone().requires_grad_(),
    "non-leaf": lambda: FLOATS.clone().requires_grad_() * 2,
    "parameter": lambda: torch.nn.Parameter(FLOATS.clone()),
    "frozen-parameter": lambda: torch.nn.Parameter(FLOATS.clone(), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(FLOATS.clone()),
    "hooked": _hooked,
    "attributed": _attributed,
    "inference": _inference,
    "shared": _shared,
    "numpy": lambda: torch.from_numpy(FLOATS.clone().numpy()),
}

# Layouts that a tensor to load into may have; all have 6 x 8 elements for the same saved tensor.
TARGETS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: filled_tensor((6, 8), dtype),
    "transposed": lambda dtype: filled_tensor((8, 6), dtype).t(),
    "columns": lambda dtype: filled_tensor((6, 11), dtype)[:, 2:10],
    "rows": lambda dtype: filled_tensor((9, 8), dtype)[2:8],
    "strided": lambda dtype: filled_tensor((12, 24), dtype)[::2, 1::3],
    "shifted": lambda dtype: filled_tensor((49,), dtype)[1:].view(6, 8),
    "conj": lambda dtype: filled_tensor((6, 8), dtype).conj(),
    "neg": lambda dtype: torch._neg_view(filled_tensor((6, 8), dtype)),
    "requires-grad": lambda dtype: filled_tensor((6, 8), dtype).requires_grad_(),
    "parameter": lambda dtype: torch.nn.Parameter(filled_tensor((6, 8), dtype)),
}
