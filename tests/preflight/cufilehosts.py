"""Cufilehosts: machines on which cuFile, its libraries or the GPU's memory decide."""

from __future__ import annotations

from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Route
from tests.preflight.hosts import OVERLAY
from tests.preflight.trees import (
    CLOSED,
    GPU,
    GPU_SOCKET,
    NVIDIA_FS,
    OPEN,
    P2P,
    PCI,
    FixtureHost,
    mounted,
    stacked,
)

__all__ = ["CUFILE_HOSTS"]

ISSUES = "github.com/NVIDIA/gds-nvidia-fs/issues"
GDS, STAGED, HOST = Route.GDS, Route.STAGED, Route.DIRECT
BOTH_WAYS = {"wrote": True, "read": True, "bytes_per_s": 5_000_000_000}
CONDA = "opt/conda/lib/libcufile.so"


def refused(step: str, code: int) -> Facts:
    """A call of cuFile that gave a number."""
    return Facts({"step": step, "code": code})


def gpu_with_bar1(name: str, total_mib: int, free_mib: int) -> Facts:
    """A single GPU."""
    gpu = {
        "name": name,
        "address": "0000:07:00.0",
        "memory_bytes": 16 << 30,
        "bar1_bytes": total_mib << 20,
        "bar1_free_bytes": free_mib << 20,
    }
    return Facts({"cuda": "13.0", "gpus": [gpu]})


PROVEN = (
    FixtureHost("cufile-proven", NVIDIA_FS, {}, GDS, "ok", cufile=Facts(BOTH_WAYS)),
    FixtureHost("p2pdma-proven", P2P, {}, GDS, "ok", cufile=Facts(BOTH_WAYS)),
    FixtureHost(
        "cufile-crashes-at-exit",
        NVIDIA_FS,
        {},
        GDS,
        "cufile-exit",
        "SIGSEGV",
        "github.com/rapidsai/kvikio/issues/497",
        cufile=Facts(BOTH_WAYS, "was ended by SIGSEGV"),
    ),
)
REFUSED = (
    FixtureHost(
        "nvidia-fs-lacks-symbols",
        GPU,
        {
            "proc/driver/nvidia/version": CLOSED,
            "proc/sys/kernel/osrelease": "5.14.0-362.24.1.el9_3.x86_64",
            "lib/modules/5.14.0-362.24.1.el9_3.x86_64/modules.dep": "extra/nvidia-fs.ko.xz:",
        },
        STAGED,
        "nvidia-fs",
        "symbols of the driver's open kernel module",
        f"{ISSUES}/41",
    ),
    FixtureHost(
        "nvidia-fs-installed-only",
        GPU,
        {"lib/modules/6.8.0-1057-oracle/modules.dep": "updates/dkms/nvidia-fs.ko.zst:"},
        STAGED,
        "nvidia-fs",
        "installed for this kernel but not loaded",
    ),
    FixtureHost(
        "h200-cuda-801",
        P2P,
        {
            "proc/driver/nvidia/version": OPEN.replace("595.71.05", "575.51.03"),
            "proc/sys/kernel/osrelease": "6.14.0-37-generic",
        },
        STAGED,
        "cufile-probe",
        "gave 801 (CUDA_ERROR_NOT_SUPPORTED)",
        f"{ISSUES}/75",
        cufile=refused("cuFileDriverOpen", 801),
    ),
    FixtureHost(
        "p2pdma-asked-for-by-a-call",
        GPU,
        {"proc/self/mountinfo": mounted("ext4", "259:1", "/dev/nvme0n1p1")},
        STAGED,
        "nvidia-fs",
        "not loaded",
        "github.com/LMCache/LMCache/issues/2539",
        cufile=refused("cuFileHandleRegister", 5008),
    ),
    FixtureHost(
        "desktop-nvme-not-registered",
        NVIDIA_FS,
        {"proc/driver/nvidia-fs/modules": "", f"{PCI}/numa_node": "-1"},
        STAGED,
        "nvidia-fs",
        "not registered",
        "github.com/tinygrad/open-gpu-kernel-modules/issues/51",
        cufile=refused("cuFileHandleRegister", 5008),
    ),
    FixtureHost(
        "intel-nvme-not-registered",
        NVIDIA_FS,
        {"proc/driver/nvidia-fs/modules": "", GPU_SOCKET: "1", f"{PCI}/numa_node": "1"},
        STAGED,
        "nvidia-fs",
        "not registered",
        f"{ISSUES}/19",
    ),
    FixtureHost(
        "overlay-is-not-registered",
        NVIDIA_FS,
        {**OVERLAY, ".dockerenv": ""},
        STAGED,
        "filesystem",
        "no block device",
        cufile=refused("cuFileHandleRegister", 5027),
    ),
    FixtureHost(
        "container-on-dm-0",
        NVIDIA_FS,
        {
            **stacked("dm-0", "251:0", ("nvme0n1",), dm__uuid="LVM-abc"),
            ".dockerenv": "",
            "run/udev": None,
        },
        STAGED,
        "drives",
        "dm-0",
        "github.com/LMCache/LMCache/issues/795",
    ),
    FixtureHost(
        "root-port-and-iommu",
        NVIDIA_FS,
        {"sys/kernel/iommu_groups/0/type": "DMA"},
        STAGED,
        "iommu",
        "DMA",
        f"{ISSUES}/57",
        cufile=refused("cuFileWrite", 5),
    ),
    FixtureHost(
        "cloud-cufile-aborts",
        NVIDIA_FS,
        {},
        STAGED,
        "cufile-exit",
        "SIGABRT",
        "github.com/rapidsai/cucim/issues/346",
        cufile=Facts({}, "was ended by SIGABRT"),
    ),
    FixtureHost(
        "libcufile-divides-by-zero",
        NVIDIA_FS,
        {"usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.1.17.1": ""},
        STAGED,
        "cufile-exit",
        "SIGFPE",
        "github.com/NVIDIA/cuda-python/pull/1925",
        cufile=Facts({}, "was ended by SIGFPE"),
    ),
    FixtureHost(
        "cufile-never-answers",
        NVIDIA_FS,
        {},
        STAGED,
        "cufile-exit",
        "did not answer",
        "measured: libcufile 1.20.0 without libcuda.so.1 spins",
        cufile=Facts({}, "did not answer within 20 s"),
    ),
    FixtureHost(
        "two-jobs-on-a-gpu",
        NVIDIA_FS,
        {},
        STAGED,
        "cufile-probe",
        "maximum pinned size",
        cufile=refused("cuFileBufRegister", 5016),
    ),
    FixtureHost(
        "cufile-changes-bytes",
        NVIDIA_FS,
        {},
        STAGED,
        "cufile-probe",
        "changed bytes that it has written",
        cufile=Facts({"wrote": False, "read": False}),
    ),
)
MEMORY = (
    FixtureHost(
        "bar1-with-281018368-bytes-left",
        NVIDIA_FS,
        {},
        GDS,
        "ok",
        source=f"{ISSUES}/4",
        nvml=gpu_with_bar1("NVIDIA GPU", 512, 281018368 >> 20),
    ),
    FixtureHost(
        "t4-bar1-taken",
        NVIDIA_FS,
        {},
        GDS,
        "bar1",
        "40 of 256 MiB free",
        "github.com/Mellanox/nv_peer_memory/issues/101",
        nvml=gpu_with_bar1("Tesla T4", 256, 40),
    ),
    FixtureHost(
        "two-libcufile",
        NVIDIA_FS,
        {f"{CONDA}.0": f"-> /{CONDA}.1.16.1", f"{CONDA}.1.16.1": ""},
        GDS,
        "libcufile-versions",
        "/opt/conda/lib",
        "github.com/rapidsai/kvikio/issues/508",
        environment={"LD_LIBRARY_PATH": "/opt/conda/lib:/nowhere"},
    ),
    FixtureHost(
        "kvikio-for-another-cuda",
        NVIDIA_FS,
        {},
        GDS,
        "packages",
        "kvikio-cu12",
        packages={"torch": "2.13.0", "torch-cuda": "13.0", "kvikio-cu12": "26.10.0"},
    ),
    FixtureHost(
        "driver-older-than-cuda",
        NVIDIA_FS,
        {},
        GDS,
        "packages",
        "CUDA up to 12.8",
        "docs.nvidia.com/gpudirect-storage/troubleshooting-guide (5.7: error code 35)",
        nvml=Facts({**gpu_with_bar1("NVIDIA H100", 131072, 130000).seen, "cuda": "12.8"}),
    ),
    FixtureHost(
        "kvikio-compat-on",
        NVIDIA_FS,
        {},
        GDS,
        "packages",
        "KVIKIO_COMPAT_MODE=ON",
        "docs.rapids.ai/api/kvikio (runtime settings)",
        environment={"KVIKIO_COMPAT_MODE": "on"},
    ),
)
CUFILE_HOSTS = (*PROVEN, *REFUSED, *MEMORY)
