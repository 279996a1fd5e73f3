"""Device: the range of bytes of a dense tensor, and a refusal by name of memory that is elsewhere.

Method: tensors of several layouts, whose bytes are read through the address that is given.
"""

from __future__ import annotations

import ctypes

import pytest
import torch

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.device import CpuDevice, MemoryRange, device_of

BASE = torch.arange(24, dtype=torch.int16).reshape(4, 6)


@pytest.mark.parametrize(
    ("tensor", "first", "count"),
    [
        (BASE, 0, 24),
        (BASE.t(), 0, 24),
        (BASE[1:3], 6, 12),
        (BASE[2, 3], 15, 1),
        (BASE[:0], 0, 0),
        (torch.nn.Parameter(BASE.float()).detach().short(), 0, 24),
    ],
    ids=["whole", "transposed", "rows", "0-dim", "empty", "copy"],
)
def test_memory_holds_the_elements(tensor: torch.Tensor, first: int, count: int) -> None:
    device = device_of(tensor)
    assert device.name == "cpu"
    device.wait_producer()
    memory = device.memory(tensor)
    assert memory.length == 2 * count
    expected = range(first, first + count)
    assert ctypes.string_at(memory.address, memory.length) == b"".join(
        number.to_bytes(2, "little") for number in expected
    )


def test_every_tensor_type_has_its_length_in_bytes() -> None:
    for dtype in (torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.complex128):
        tensor = torch.empty(10, dtype=dtype)
        assert CpuDevice().memory(tensor) == MemoryRange(tensor.data_ptr(), 10 * dtype.itemsize)


@pytest.mark.parametrize(
    "tensor",
    [BASE[:, 1:3], BASE[::2], torch.zeros(1).expand(5)],
    ids=["columns", "every other row", "expanded"],
)
def test_tensor_with_gaps_or_overlaps_has_no_range(tensor: torch.Tensor) -> None:
    with pytest.raises(AssertionError):
        device_of(tensor).memory(tensor)


def test_other_devices_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"on meta: .* host memory and on NVIDIA GPUs only"):
        device_of(torch.empty(3, device="meta"))
