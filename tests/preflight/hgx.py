"""Hgx: a node of 8 GPUs and 8 drives on two sockets, each pair below a PCIe switch of its own.

Reconstructed: the shape is that of HGX boards, the addresses are made up.
"""

from __future__ import annotations

from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Route
from tests.preflight.trees import NVIDIA_FS, FixtureHost, device, stacked

__all__ = ["HGX", "HGX_FEW_RAM"]

PAIRS = 8


def _switch(number: int) -> str:
    """The downstream side of a pair's switch."""
    bus = 0x10 * (number + 1)
    return f"sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"


def _gpu_address(number: int) -> str:
    return f"0000:{0x10 * (number + 1) + 3:02x}:00.0"


def _pair(number: int) -> dict[str, str | bytes | None]:
    """A GPU and a drive."""
    bus, socket = 0x10 * (number + 1), str(number * 2 // PAIRS)
    gpu = f"{_switch(number)}/0000:{bus + 2:02x}:00.0/{_gpu_address(number)}"
    drive = f"0000:{bus + 4:02x}:00.0"
    place = f"{_switch(number)}/0000:{bus + 2:02x}:01.0/{drive}"
    controller = f"{place}/nvme/nvme{number}"
    name, device_number = f"nvme{number}n1", f"259:{number + 20}"
    queue = {"queue__scheduler": "[none]", "queue__logical_block_size": "512"}
    return {
        **{
            f"sys/bus/pci/devices/0000:{bus + 2:02x}:{port}.0/config": bytes(512)
            for port in ("00", "01")
        },
        f"proc/driver/nvidia/gpus/{_gpu_address(number)}/information": "",
        f"{gpu}/numa_node": socket,
        f"sys/bus/pci/devices/{_gpu_address(number)}": f"-> /{gpu}",
        f"sys/class/nvme/nvme{number}": f"-> /{controller}",
        f"{controller}/transport": "pcie",
        f"{controller}/device": f"-> /{place}",
        f"{place}/numa_node": socket,
        f"sys/bus/pci/devices/{drive}": f"-> /{place}",
        f"dev/{name}": "",
        **device(name, device_number, f"{controller}/{name}", **queue),
    }


def _nvml(memory_gib: int, name: str) -> Facts:
    """What the driver's library says of eight GPUs."""
    gpus = [
        {
            "name": name,
            "address": _gpu_address(number),
            "memory_bytes": memory_gib << 30,
            "bar1_bytes": 128 << 30,
            "bar1_free_bytes": 127 << 30,
        }
        for number in range(PAIRS)
    ]
    return Facts({"cuda": "13.0", "gpus": gpus})


BASE = {
    **{
        name: text
        for name, text in NVIDIA_FS.items()
        if "nvme0" not in name and "07:00" not in name
    },
    **{name: text for number in range(PAIRS) for name, text in _pair(number).items()},
    **stacked("md0", "9:0", tuple(f"nvme{number}n1" for number in range(PAIRS)), md__level="raid0"),
    "proc/meminfo": "MemTotal: 2147483648 kB",
    "dev/md0": "",
}
HGX = FixtureHost(
    "hgx-8-gpus-8-drives", BASE, {}, Route.GDS, "ok", nvml=_nvml(80, "NVIDIA H100 80GB HBM3")
)
HGX_FEW_RAM = FixtureHost(
    "hgx-gpus-hold-more-than-staging-may",
    BASE,
    {},
    Route.GDS,
    "host-memory",
    "1128 GiB",
    nvml=_nvml(141, "NVIDIA H200"),
)
