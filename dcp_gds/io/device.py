"""Device: where a tensor's bytes are, and how they reach host memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import torch

from dcp_gds.errors import UnsupportedError
from dcp_gds.io.gpustream import GpuStream

__all__ = [
    "Accelerator",
    "CpuDevice",
    "Device",
    "MemoryRange",
    "TorchCuda",
    "accelerator_of",
    "device_of",
]


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """`length` bytes from `address` on; the tensor they belong to has to be kept alive."""

    address: int
    length: int


class Device(Protocol):
    """What saving and loading ask of the device that holds a tensor."""

    @property
    def name(self) -> str:
        """Device as torch names it."""

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's bytes are in this device's memory."""

    def memory(self, tensor: torch.Tensor) -> MemoryRange:
        """Return the bytes of a tensor without gaps or overlaps, in any order of dimensions."""

    def wait_producer(self) -> None:
        """Let all that is asked for from now on wait for what this thread has queued so far."""

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements in row-major order, conjugated and negated where they have to be."""


class Accelerator(Device, Protocol):
    """A device whose memory the CPU cannot touch: copies are queued, and waited for by `wait`."""

    @property
    def stream(self) -> GpuStream:
        """Where this device's copies are queued."""


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
        return _memory_of(tensor)

    def wait_producer(self) -> None:
        """Return at once: torch's CPU operators are done when they return."""

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor; a view where nothing has to be rearranged."""
        return tensor.resolve_conj().resolve_neg().contiguous()


class TorchCuda:
    """A GPU that torch uses. Nothing else calls torch.cuda.

    What makes the tensors runs in torch's current stream of the calling thread; copies run in a
    stream of their own.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._stream = GpuStream(ordinal)

    @property
    def name(self) -> str:
        """The GPU as torch names it."""
        return f"cuda:{self._ordinal}"

    @property
    def stream(self) -> GpuStream:
        """Where copies are queued."""
        return self._stream

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on this GPU."""
        return tensor.device.type == "cuda" and tensor.device.index == self._ordinal

    def memory(self, tensor: torch.Tensor) -> MemoryRange:
        """Return the bytes of a dense tensor, in the GPU's memory."""
        return _memory_of(tensor)

    def wait_producer(self) -> None:
        """Let copies wait for the current stream, without holding up this thread."""
        self._stream.follow(torch.cuda.current_stream(self._ordinal).cuda_stream)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue the packing in the stream of the copies.

        torch gives the result's memory to that stream alone, so it may go when its copy is queued.
        """
        handle = self._stream.handle
        stream = torch.cuda.ExternalStream(handle, device=self._ordinal)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            return tensor.resolve_conj().resolve_neg().contiguous()


def device_of(tensor: torch.Tensor) -> CpuDevice | Accelerator:
    """Return the device that holds `tensor`.

    Raises
    ------
    UnsupportedError
        If this version cannot move bytes of that kind of device.
    """
    accelerator = accelerator_of(tensor)
    if accelerator is not None:
        return accelerator
    if not _CPU.owns(tensor):
        raise UnsupportedError(
            f"the tensor is on {tensor.device}: this version saves and loads tensors in host memory"
            " and on NVIDIA GPUs only; move it there first, for example with tensor.cpu()"
        )
    return _CPU


def accelerator_of(tensor: torch.Tensor) -> Accelerator | None:
    """Return the GPU that holds `tensor`; None if none does."""
    if tensor.device.type != "cuda":
        return None
    return _torch_cuda(tensor.device.index)


@functools.cache
def _torch_cuda(ordinal: int) -> TorchCuda:
    """A GPU, the same one for the life of the process: a stream is not made for every tensor."""
    return TorchCuda(ordinal)


def _memory_of(tensor: torch.Tensor) -> MemoryRange:
    """The bytes of a dense tensor."""
    assert _spans_its_elements(tensor)
    return MemoryRange(tensor.data_ptr(), tensor.nbytes)


def _spans_its_elements(tensor: torch.Tensor) -> bool:
    """Whether the first and the last element are as far apart as in a dense tensor."""
    if tensor.is_contiguous() or not tensor.numel():
        return True
    last = sum(
        (extent - 1) * stride for extent, stride in zip(tensor.size(), tensor.stride(), strict=True)
    )
    return last + 1 == tensor.numel()


_CPU = CpuDevice()
