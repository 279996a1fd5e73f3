"""Device: where a tensor's bytes are, and how they reach host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from dcp_gds.errors import UnsupportedError

__all__ = ["CpuDevice", "Device", "MemoryRange", "device_of"]


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """`length` bytes from `address` on; the tensor they belong to has to be kept alive."""

    address: int
    length: int


class Device(Protocol):
    """What saving and loading ask of the device that holds a tensor."""

    @property
    def name(self) -> str:
        """Device type as torch names it."""

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's bytes are in this device's memory."""

    def memory(self, tensor: torch.Tensor) -> MemoryRange:
        """Return the bytes of a tensor without gaps or overlaps, in any order of dimensions."""

    def wait_producer(self, tensor: torch.Tensor) -> None:
        """Wait until what was queued to write the tensor before this call has done so."""

    def copy_to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy this device's `source` into `target` in host memory; done on return."""

    def copy_from_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source` in host memory into this device's `target`; done on return."""


class CpuDevice:
    """Host memory: every operation is done when its call returns."""

    @property
    def name(self) -> str:
        """Device type as torch names it."""
        return "cpu"

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's bytes are in host memory, pinned or not."""
        return tensor.device.type == "cpu"

    def memory(self, tensor: torch.Tensor) -> MemoryRange:
        """Return the bytes of a dense tensor, in the memory that torch works on."""
        assert _spans_its_elements(tensor)
        return MemoryRange(tensor.data_ptr(), tensor.nbytes)

    def wait_producer(self, tensor: torch.Tensor) -> None:
        """Return at once: torch's CPU operators are done when they return."""

    def copy_to_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source` into `target`."""
        target.copy_(source)

    def copy_from_host(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy `source` into `target`."""
        target.copy_(source)


def device_of(tensor: torch.Tensor) -> Device:
    """Return the device that holds `tensor`.

    Raises
    ------
    UnsupportedError
        If this version cannot move bytes of that kind of device.
    """
    device = CpuDevice()
    if not device.owns(tensor):
        raise UnsupportedError(
            f"the tensor is on {tensor.device}: this version saves and loads tensors in host memory"
            " only; move it there first, for example with tensor.cpu()"
        )
    return device


def _spans_its_elements(tensor: torch.Tensor) -> bool:
    """Whether the first and the last element are as far apart as in a dense tensor."""
    if tensor.is_contiguous() or not tensor.numel():
        return True
    last = sum(
        (extent - 1) * stride for extent, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return last + 1 == tensor.numel()
