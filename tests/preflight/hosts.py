"""Hosts: machines from public reports, or reconstructed, and what the check has to say on each."""

from __future__ import annotations

from dcp_gds.preflight.finding import Route
from tests.preflight.trees import (
    CACHED,
    CLOSED,
    DIRECT,
    GPU,
    LINUX,
    NVIDIA_FS,
    OPEN,
    P2P,
    PCI,
    FixtureHost,
    device,
    mounted,
    stacked,
)

__all__ = ["HOSTS"]

ISSUES = "github.com/NVIDIA/gds-nvidia-fs/issues"
EIGHT = {
    key: text
    for n in range(1, 8)
    for key, text in device(f"nvme{n}n1", f"259:{n + 8}", f"sys/devices/pci{n}/nvme{n}n1").items()
}
RAID = ("nvme0n1", *(f"nvme{n}n1" for n in range(1, 8)))
XFS = {"proc/self/mountinfo": mounted("xfs", "259:0", "/dev/nvme0n1")}
OVERLAY = {"proc/self/mountinfo": "30 25 0:383 / / rw - overlay overlay rw,upperdir=/x"}
GDS, STAGED, HOST, BUFFERED = Route.GDS, Route.STAGED, Route.DIRECT, Route.BUFFERED

HOSTS = (
    FixtureHost("nvidia-fs-ext4", NVIDIA_FS, {}, GDS, "ok"),
    FixtureHost("nvidia-fs-xfs", NVIDIA_FS, XFS, GDS, "ok"),
    FixtureHost(
        "hgx-8-gpus-8-drives",
        NVIDIA_FS,
        {
            **EIGHT,
            **stacked("md0", "9:0", RAID, md__level="raid0"),
            **{f"proc/driver/nvidia/gpus/0000:{n}b:00.0/information": "" for n in range(1, 8)},
        },
        GDS,
        "ok",
    ),
    FixtureHost(
        "doca-nvme-not-registered",
        NVIDIA_FS,
        {
            "proc/driver/nvidia-fs/modules": "wekafsio: 1",
            **stacked("md0", "9:0", ("nvme0n1",), md__level="raid0"),
        },
        STAGED,
        "nvidia-fs",
        "not registered",
        f"{ISSUES}/87",
    ),
    FixtureHost(
        "rocky-nvme-not-registered",
        NVIDIA_FS,
        {
            "proc/driver/nvidia/version": CLOSED,
            "proc/sys/kernel/osrelease": "4.18.0-477.27.1.el8_8.x86_64",
            "proc/driver/nvidia-fs/modules": "",
            "proc/driver/nvidia-fs/version": "version: 2.17.3",
        },
        STAGED,
        "nvidia-fs",
        "not registered",
        f"{ISSUES}/31",
    ),
    FixtureHost("nvidia-fs-missing", GPU, {}, STAGED, "nvidia-fs", "not loaded"),
    FixtureHost(
        "container-no-device", NVIDIA_FS, {"dev/nvidia-fs0": None}, STAGED, "nvidia-fs", "/dev"
    ),
    FixtureHost("container-no-udev", NVIDIA_FS, {"run/udev": None}, STAGED, "nvidia-fs", "udev"),
    FixtureHost("container-overlay", NVIDIA_FS, OVERLAY, STAGED, "filesystem", "0:383"),
    FixtureHost(
        "no-libcufile",
        NVIDIA_FS,
        {"usr/local/cuda/targets/x86_64-linux/lib": None},
        STAGED,
        "libcufile",
    ),
    FixtureHost(
        "iommu-translates",
        NVIDIA_FS,
        {"sys/kernel/iommu_groups/0/type": "DMA-FQ"},
        STAGED,
        "iommu",
        "DMA-FQ",
    ),
    FixtureHost(
        "p2pdma-good", P2P, {}, GDS, "ok", source="github.com/heterodb/pg-strom/issues/913"
    ),
    FixtureHost(
        "p2pdma-closed-module",
        P2P,
        {"proc/driver/nvidia/version": CLOSED},
        STAGED,
        "p2pdma",
        "closed",
    ),
    FixtureHost(
        "p2pdma-no-registry-words",
        P2P,
        {"proc/driver/nvidia/params": 'RegistryDwords: ""'},
        STAGED,
        "p2pdma",
        "RMForceStaticBar1",
    ),
    FixtureHost(
        "p2pdma-multipath",
        P2P,
        {"sys/module/nvme_core/parameters/multipath": "Y"},
        STAGED,
        "p2pdma",
        "multipath",
    ),
    FixtureHost(
        "p2pdma-kernel-without",
        P2P,
        {"boot/config-6.8.0-1057-oracle": "# CONFIG_PCI_P2PDMA is not set"},
        STAGED,
        "p2pdma",
        "CONFIG_PCI_P2PDMA",
        "github.com/siderolabs/pkgs/pull/1356",
    ),
    FixtureHost(
        "p2pdma-nvme-of",
        P2P,
        {f"{PCI}/nvme/nvme0/transport": "rdma"},
        STAGED,
        "drives",
        "over rdma",
    ),
    FixtureHost(
        "lvm",
        NVIDIA_FS,
        stacked("dm-0", "253:0", ("nvme0n1",), dm__uuid="LVM-abc"),
        STAGED,
        "drives",
        "lvm",
    ),
    FixtureHost(
        "luks",
        NVIDIA_FS,
        stacked("dm-0", "253:0", ("nvme0n1p1",), dm__uuid="CRYPT-LUKS2-abc"),
        STAGED,
        "drives",
        "crypt",
    ),
    FixtureHost(
        "ext4-data-journal",
        NVIDIA_FS,
        {"proc/self/mountinfo": mounted("ext4", "259:1", "/dev/x", "rw,data=journal")},
        STAGED,
        "filesystem",
        "data=journal",
    ),
    FixtureHost("4kn", NVIDIA_FS, XFS, GDS, "ok", facts={**DIRECT, "alignment": [512, 4096]}),
    FixtureHost(
        "wsl",
        LINUX,
        {"dev/dxg": "", "proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2"},
        STAGED,
        "driver",
        "WSL",
    ),
    FixtureHost(
        "grace-hopper",
        NVIDIA_FS,
        {
            "proc/driver/nvidia/version": OPEN.replace("x86_64", "aarch64"),
            "usr/local/cuda/targets/x86_64-linux/lib": None,
            "usr/local/cuda/targets/sbsa-linux/lib/libcufile.so.0": "",
        },
        GDS,
        "ok",
    ),
    FixtureHost(
        "vm-passthrough-gpu-virtio-disk",
        NVIDIA_FS,
        {
            **device("vda", "252:0", "sys/devices/pci0000:00/virtio1/block/vda"),
            "proc/self/mountinfo": mounted("ext4", "252:0", "/dev/vda"),
        },
        STAGED,
        "drives",
        "vda",
    ),
    FixtureHost(
        "expandable-segments",
        NVIDIA_FS,
        {},
        GDS,
        "allocator",
        "registered",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    FixtureHost(
        "slow-link", NVIDIA_FS, {f"{PCI}/current_link_width": "2"}, GDS, "drive-link", "width"
    ),
    FixtureHost("cpu-no-swap", LINUX, {}, HOST, "ok"),
    FixtureHost(
        "cpu-swap",
        LINUX,
        {"proc/swaps": "Filename Type Size Used Priority\n/swap.img file 8388604 0 -2"},
        HOST,
        "swap",
        "/swap.img",
    ),
    FixtureHost("vm-defaults", LINUX, {"proc/sys/vm/swappiness": "60"}, HOST, "vm", "=60"),
    FixtureHost(
        "vm-bytes",
        LINUX,
        {"proc/sys/vm/dirty_bytes": "0", "proc/sys/vm/dirty_ratio": "20"},
        HOST,
        "vm",
        "dirty_bytes=0",
    ),
    FixtureHost(
        "cgroup-v2-limit",
        LINUX,
        {"sys/fs/cgroup/user.slice/memory.max": "4294967296"},
        HOST,
        "cgroup-memory",
        "4.0 GiB",
    ),
    FixtureHost(
        "cgroup-v1-limit",
        LINUX,
        {
            "proc/self/cgroup": "4:memory:/docker/abc",
            "proc/self/mountinfo": mounted("ext4", "259:1", "/dev/nvme0n1p1")
            + "\n27 25 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0",
        },
        HOST,
        "cgroup-memory",
        "2.0 GiB",
    ),
    FixtureHost(
        "few-files",
        LINUX,
        {"proc/self/limits": "Max open files 1024 4096 files"},
        HOST,
        "nofile",
        "1024",
    ),
    FixtureHost(
        "btrfs",
        LINUX,
        {"proc/self/mountinfo": mounted("btrfs", "0:40", "/dev/nvme0n1")},
        BUFFERED,
        "direct-io",
        "not honoured",
        facts=CACHED,
    ),
)
