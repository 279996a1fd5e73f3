"""Cufile errors: the numbers and texts of cuFile's errors, and what each means for an operator."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CUFILE_ERRORS", "CufileError"]


class CufileError(NamedTuple):
    """An error in the words of `cufile.h`, and what to do about it."""

    text: str
    remedy: str


# By number. 801 is CUDA's, which cuFile passes on.
CUFILE_ERRORS = {
    5001: CufileError(
        "nvidia-fs driver is not loaded",
        "modprobe nvidia-fs (package nvidia-gds), or set use_pci_p2pdma in cufile.json",
    ),
    5008: CufileError(
        "GPUDirect Storage not supported on current file",
        "put the checkpoint on ext4 or xfs on local NVMe, and load nvidia-fs or set up P2PDMA;"
        " `gdscheck PATH` says which is missing",
    ),
    5016: CufileError(
        "access beyond maximum pinned size",
        "raise max_device_pinned_mem_size_kb in cufile.json, or run fewer processes on this GPU",
    ),
    5027: CufileError(
        "file descriptor is not registered",
        "an overlay or a container hides the drive: bind-mount a directory of the NVMe drive into"
        " the container, and pass --device=/dev/nvidia-fs0",
    ),
    5030: CufileError(
        "internal error",
        "cuFile finds no block device behind the file: bind-mount a directory of the NVMe drive and"
        " /run/udev into the container, and read cufile.log",
    ),
    5033: CufileError("NVFS driver initialization error", "modprobe nvidia-fs, and read `dmesg`"),
    5036: CufileError(
        "failed to allocate pinned GPU Memory",
        "the GPU's BAR1 memory is full (`nvidia-smi -q -d MEMORY`): run fewer processes on it",
    ),
    5043: CufileError(
        "cufile no memory error",
        "the GPU's BAR1 memory is full (`nvidia-smi -q -d MEMORY`): run fewer processes on it",
    ),
    801: CufileError(
        "CUDA_ERROR_NOT_SUPPORTED", "install the driver's open kernel modules, a newer driver"
    ),
}
