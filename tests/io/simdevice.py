"""Simulated device: tensors in the simulator's device memory, which the CPU cannot touch."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from unittest import mock

import torch

from dcp_gds.io import device as devices
from dcp_gds.io.device import MemoryRange
from dcp_gds.io.gpustream import GpuStream
from tests.gdssim.memory import SimGpu
from tests.gdssim.simulator import Simulator

__all__ = ["SimDevice"]

_ON_DEVICE = 0


class SimDevice:
    """One simulated GPU. Its tensors are CPU tensors to torch, and any access ends the process.

    `producer` is the stream that makes tensors.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        simulator.cuda.sim_behind.restype = ctypes.c_void_p
        self.gpu = SimGpu(simulator)
        self.producer = self.gpu.new_stream()
        self.stream = GpuStream(0)
        self.name = "cuda:0"

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether its memory is the simulator's."""
        return self._behind(tensor.data_ptr()) is not None

    def memory(self, tensor: torch.Tensor) -> MemoryRange:
        """Its bytes."""
        return MemoryRange(tensor.data_ptr(), tensor.nbytes)

    def wait_producer(self) -> None:
        """Let copies wait for `producer`."""
        self.stream.follow(self.producer)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Not simulated."""
        raise NotImplementedError

    def tensor(self, source: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor, of zeros until the producer's queued copy from `source` is done."""
        data = source.contiguous().reshape(-1).view(torch.uint8)
        made = self.gpu.allocate(max(1, data.numel()))
        made.write(bytes(data.numel()))
        hidden = self.gpu.allocate(max(1, data.numel()))
        hidden.write(data.numpy().tobytes())
        self.gpu.copy(
            hidden.address, target=made.address, length=data.numel(), stream=self.producer
        )
        memory = (ctypes.c_ubyte * data.numel()).from_address(made.address)
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        return flat.view(source.dtype).reshape(source.shape)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let dcp_gds find the device's tensors."""

        def accelerator_of(tensor: torch.Tensor) -> SimDevice | None:
            return self if tensor.numel() and self.owns(tensor) else None

        with contextlib.ExitStack() as stack:
            for module in (
                devices,
                _module("saveitem"),
                _module("shardwriter"),
                _module("statecopy"),
            ):
                stack.enter_context(mock.patch.object(module, "accelerator_of", accelerator_of))
            yield

    def _behind(self, address: int) -> int | None:
        where = ctypes.c_int()
        found: int | None = self._simulator.cuda.sim_behind(
            ctypes.c_uint64(address), ctypes.c_size_t(1), ctypes.byref(where)
        )
        return found if where.value == _ON_DEVICE else None


def _module(name: str) -> object:
    import importlib  # noqa: PLC0415  # a cycle at the top would load the writer with the device

    return importlib.import_module(f"dcp_gds.checkpoint.{name}")
