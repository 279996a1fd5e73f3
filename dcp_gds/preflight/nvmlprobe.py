"""NVML probe: a program that asks the driver's management library about GPUs, and prints JSON.

The library comes with the driver, so that no Python package is needed; it is not libcuda. It runs
as a process of its own, because it waits for a GPU that hangs.
"""

from __future__ import annotations

import ctypes
import json
import sys

__all__ = ["main"]

LIBRARY = "libnvidia-ml.so.1"
TEXT_BYTES = 96
GPUS_MAX = 64


class _Memory(ctypes.Structure):
    """nvmlMemory_t and nvmlBAR1Memory_t: three numbers, in different orders."""

    _fields_ = (("total", ctypes.c_ulonglong), ("a", ctypes.c_ulonglong), ("b", ctypes.c_ulonglong))


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("address", ctypes.c_char * 32),
    )


def main() -> dict[str, object]:
    """Return the driver's CUDA version and every GPU, or the error that stopped it."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return {"error": str(error)}
    code = nvml.nvmlInit_v2()
    if code:
        return {"error": f"nvmlInit_v2 returned {code}"}
    version, count = ctypes.c_int(), ctypes.c_uint()
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version))
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    gpus = [_gpu(nvml, index) for index in range(min(count.value, GPUS_MAX))]
    nvml.nvmlShutdown()
    # 13020 is 13.2.
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""
    return {"cuda": cuda, "gpus": gpus}


def _gpu(nvml: ctypes.CDLL, index: int) -> dict[str, object]:
    """What is known of a GPU; a value that cannot be had is left out."""
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return {}
    gpu: dict[str, object] = {}
    name, pci = ctypes.create_string_buffer(TEXT_BYTES), _Pci()
    memory, bar1 = _Memory(), _Memory()
    if not nvml.nvmlDeviceGetName(handle, name, TEXT_BYTES):
        gpu["name"] = name.value.decode(errors="replace")
    if not nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)):
        # NVML writes domains with eight digits, /sys with four.
        gpu["address"] = pci.address.decode(errors="replace").lower()[-12:]
    if not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        gpu["memory_bytes"] = memory.total
    if not nvml.nvmlDeviceGetBAR1MemoryInfo(handle, ctypes.byref(bar1)):
        gpu["bar1_bytes"], gpu["bar1_free_bytes"] = bar1.total, bar1.a
    return gpu


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()))
