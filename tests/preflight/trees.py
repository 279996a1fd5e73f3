"""Trees: other machines' /proc and /sys as small tables, which `build` turns into files.

A host is a base and what differs from it: file names with their text, None for a file or directory
that is missing, and "-> target" for a link. `source` names the public report that the deciding
values are from; the rest of a tree, and whole hosts marked "reconstructed", follow the kernel's and
the vendor's documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Route
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.node import Node

__all__ = [
    "CACHED",
    "CLOSED",
    "DIRECT",
    "GPU",
    "GPU_SOCKET",
    "LINUX",
    "NVIDIA_FS",
    "NVME",
    "OPEN",
    "P2P",
    "PCI",
    "FixtureHost",
    "build",
    "device",
    "mounted",
    "stacked",
]

DIRECT = {
    "directory": True,
    "free": 1 << 41,
    "inodes": 1000,
    "inodes_free": 900,
    "direct": True,
    "alignment": [512, 512],
    "observed": "a block came back as written",
}
CACHED = {**DIRECT, "direct": False, "observed": "statx reports no alignment for direct I/O"}
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
PCI = "sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"
NVME = f"{PCI}/nvme/nvme0/nvme0n1"
GPU_SOCKET = "sys/devices/pci0000:00/0000:00:01.0/0000:07:00.0/numa_node"
P2PDMA = (
    '// cuFile\n{"properties": {"use_pci_p2pdma": true, // no nvidia-fs\n "io_batchsize": 128}}'
)
WORDS = 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'

PACKAGES = {"torch": "2.13.0", "torch-cuda": "13.0", "kvikio-cu13": "26.10.0"}
NVML = {
    "cuda": "13.0",
    "gpus": [
        {
            "name": "NVIDIA H100",
            "address": "0000:07:00.0",
            "memory_bytes": 80 << 30,
            "bar1_bytes": 128 << 30,
            "bar1_free_bytes": 127 << 30,
        }
    ],
}

Files = Mapping[str, str | bytes | None]


def mounted(filesystem: str, device: str, source: str, options: str = "rw") -> str:
    """A mountinfo with a root and a mount on /data."""
    return (
        "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "26 25 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        f"30 25 {device} / /data rw,relatime shared:1 - {filesystem} {source} {options}"
    )


def device(name: str, number: str, place: str, **files: str) -> dict[str, str | None]:
    """A block device in /sys."""
    return {
        f"{place}/dev": number,
        f"{place}/uevent": f"DEVNAME={name}",
        f"sys/class/block/{name}": f"-> /{place}",
        f"sys/dev/block/{number}": f"-> /{place}",
        **{f"{place}/{file.replace('__', '/')}": text for file, text in files.items()},
    }


def stacked(name: str, number: str, below: tuple[str, ...], **files: str) -> dict[str, str | None]:
    """A virtual block device on others, with the filesystem of /data on it."""
    place = f"sys/devices/virtual/block/{name}"
    slaves: dict[str, str | None] = {f"{place}/slaves/{each}/uevent": "" for each in below}
    mount = {"proc/self/mountinfo": mounted("xfs", number, f"/dev/{name}")}
    return {**device(name, number, place, **files), **slaves, **mount}


LINUX: Files = {
    "proc/self/mountinfo": mounted("ext4", "259:1", "/dev/nvme0n1p1"),
    "proc/self/limits": (
        "Max open files            65536    65536    files\n"
        "Max locked memory         8388608  8388608  bytes"
    ),
    "proc/self/cgroup": "0::/user.slice",
    "sys/fs/cgroup/user.slice/memory.max": "max",
    "sys/fs/cgroup/user.slice/memory.current": "1073741824",
    "sys/fs/cgroup/user.slice/memory.stat": "inactive_file 0",
    "proc/meminfo": "MemTotal: 536870912 kB",
    "proc/vmstat": "nr_dirty_threshold 1000",
    "proc/self/status": "Seccomp:\t0",
    "proc/1/cgroup": "0::/init.scope",
    "proc/sys/vm/overcommit_memory": "0",
    "proc/sys/kernel/io_uring_disabled": "0",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "proc/swaps": "Filename Type Size Used Priority",
    "proc/sys/kernel/osrelease": "6.8.0-1057-oracle",
    "proc/sys/vm/swappiness": "1",
    # Of 512 GiB no percentage is small.
    "proc/sys/vm/dirty_background_ratio": "0",
    "proc/sys/vm/dirty_ratio": "0",
    "proc/sys/vm/dirty_background_bytes": "4294967296",
    "proc/sys/vm/dirty_bytes": "8589934592",
    "proc/sys/vm/vfs_cache_pressure": "50",
    "run/udev/data/b259:0": "",
    "sys/class/nvme/nvme0": f"-> /{PCI}/nvme/nvme0",
    f"{PCI}/nvme/nvme0/transport": "pcie",
    f"{PCI}/nvme/nvme0/device": f"-> /{PCI}",
    f"{PCI}/current_link_speed": "16.0 GT/s PCIe",
    f"{PCI}/max_link_speed": "16.0 GT/s PCIe",
    f"{PCI}/current_link_width": "4",
    f"{PCI}/max_link_width": "4",
    f"{NVME}/device": f"-> /{PCI}/nvme/nvme0",
    f"{PCI}/numa_node": "0",
    "sys/bus/pci/devices/0000:81:00.0": f"-> /{PCI}",
    f"{NVME}/queue/scheduler": "[none] mq-deadline kyber",
    f"{NVME}/queue/logical_block_size": "512",
    f"{NVME}/queue/write_cache": "write through",
    **device("nvme0n1", "259:0", NVME),
    **device("nvme0n1p1", "259:1", f"{NVME}/nvme0n1p1", partition="1"),
}
GPU: Files = {
    **LINUX,
    "proc/driver/nvidia/version": OPEN,
    "proc/driver/nvidia/gpus/0000:07:00.0/information": "",
    "dev/nvidia0": "",
    "dev/nvme0n1": "",
    "dev/nvme0n1p1": "",
    "sys/bus/pci/devices/0000:07:00.0": "-> /sys/devices/pci0000:00/0000:00:01.0/0000:07:00.0",
    GPU_SOCKET: "0",
    "usr/local/cuda/targets/x86_64-linux/lib/libcufile.so.0": "",
    "sys/kernel/iommu_groups/0/type": "identity",
}
NVIDIA_FS: Files = {
    **GPU,
    "sys/module/nvidia_fs/version": "2.29.4",
    "proc/driver/nvidia-fs/version": "version: 2.29.4",
    "proc/driver/nvidia-fs/modules": "nvme: 1",
    "dev/nvidia-fs0": "",
}
P2P: Files = {
    **GPU,
    "etc/cufile.json": P2PDMA,
    "proc/driver/nvidia/params": WORDS,
    "sys/module/nvme_core/parameters/multipath": "N",
    "boot/config-6.8.0-1057-oracle": "CONFIG_PCI_P2PDMA=y",
}


@dataclass(frozen=True, slots=True)
class FixtureHost:
    """A host, and what the check has to say about /data on it."""

    name: str
    base: Files
    changes: Files
    route: Route
    top: str
    cause: str = ""
    source: str = "reconstructed"
    facts: Mapping[str, Any] = field(default_factory=lambda: DIRECT)
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=lambda: PACKAGES)
    nvml: Facts = Facts(NVML)  # noqa: RUF009 - it is frozen
    cufile: Facts | None = None
    smart: Facts = Facts({})  # noqa: RUF009 - it is frozen

    def node(self, root: Path) -> Node:
        """The machine whose tree was made at `root`."""
        return Node(Host(root), self.environment, self.packages, self.nvml)


def build(host: FixtureHost, root: Path) -> Path:
    """Make the tree."""
    for name, text in {**host.base, **host.changes}.items():
        if text is None or any(name.startswith(f"{gone}/") for gone in _missing(host)):
            continue
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        elif text.startswith("-> /"):
            path.symlink_to(root / text[4:])
        else:
            path.write_text(text)
    return root


def _missing(host: FixtureHost) -> list[str]:
    return [name for name, text in host.changes.items() if text is None]
