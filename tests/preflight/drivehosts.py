"""Drivehosts: machines on which the drives, and their way to the GPU, decide."""

from __future__ import annotations

from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Route
from tests.preflight.hgx import HGX, HGX_FEW_RAM
from tests.preflight.trees import (
    GPU_SOCKET,
    LINUX,
    NVIDIA_FS,
    NVME,
    FixtureHost,
    device,
    mounted,
    stacked,
)

__all__ = ["DRIVE_HOSTS"]

ISSUES = "github.com/NVIDIA/gds-nvidia-fs/issues"
GDS, STAGED, HOST = Route.GDS, Route.STAGED, Route.DIRECT


def acs(control: int) -> bytes:
    """A bridge's registers: some other capability, and ACS after it."""
    registers = bytearray(0x200)
    registers[0x100:0x104] = (0x150 << 20 | 0x10001).to_bytes(4, "little")
    registers[0x150:0x154] = 0x1000D.to_bytes(4, "little")
    registers[0x156:0x158] = control.to_bytes(2, "little")
    return bytes(registers)


# The GPU moves below the port that the drive is on.
BELOW_ONE_SWITCH = {
    "sys/bus/pci/devices/0000:07:00.0": "-> /sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0/"
    "0000:07:00.0",
    "sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0/0000:07:00.0/numa_node": "0",
    "sys/bus/pci/devices/0000:82:00.0": "-> /sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0",
}
ACS_PLACE = "sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0/config"

DRIVE_HOSTS = (
    HGX,
    HGX_FEW_RAM,
    FixtureHost(
        "no-gpu-on-the-drives-socket",
        NVIDIA_FS,
        {GPU_SOCKET: "1"},
        GDS,
        "distance",
        "across sockets",
    ),
    FixtureHost(
        "acs-redirects",
        NVIDIA_FS,
        {**BELOW_ONE_SWITCH, ACS_PLACE: acs(0x1D)},
        GDS,
        "acs",
        "0000:82:00.0",
    ),
    FixtureHost(
        "acs-off",
        NVIDIA_FS,
        {**BELOW_ONE_SWITCH, ACS_PLACE: acs(0)},
        GDS,
        "ok",
        source=f"{ISSUES}/60",
    ),
    FixtureHost(
        "scheduler-bfq",
        NVIDIA_FS,
        {f"{NVME}/queue/scheduler": "none mq-deadline [bfq]"},
        GDS,
        "drive-queue",
        "bfq",
    ),
    FixtureHost(
        "drive-worn",
        NVIDIA_FS,
        {},
        GDS,
        "drive-health",
        "104% of its endurance",
        smart=Facts({"nvme0": {"warning": 4, "spare": 90, "threshold": 10, "used": 104}}),
    ),
    FixtureHost(
        "native-multipath",
        NVIDIA_FS,
        {
            **device("nvme3n1", "259:7", "sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme3n1"),
            "sys/devices/virtual/nvme-subsystem/nvme-subsys3/nvme7/transport": "tcp",
            "sys/class/nvme/nvme7/transport": "tcp",
            "proc/self/mountinfo": mounted("xfs", "259:7", "/dev/nvme3n1"),
        },
        STAGED,
        "drives",
        "nvme over tcp",
    ),
    FixtureHost(
        "md-raid-1",
        NVIDIA_FS,
        stacked("md1", "9:1", ("nvme0n1",), md__level="raid1"),
        STAGED,
        "drives",
        "raid1",
    ),
    FixtureHost(
        "dm-multipath",
        NVIDIA_FS,
        stacked("dm-2", "253:2", ("nvme0n1",), dm__uuid="mpath-abc"),
        STAGED,
        "drives",
        "multipath",
    ),
    *(
        FixtureHost(
            kind,
            NVIDIA_FS,
            {"proc/self/mountinfo": mounted(kind, "0:50", "server:/export")},
            STAGED,
            "filesystem",
            kind,
        )
        for kind in ("nfs4", "lustre", "wekafs", "fuse.sshfs", "zfs")
    ),
    FixtureHost(
        "strict-overcommit",
        LINUX,
        {
            "proc/sys/vm/overcommit_memory": "2",
            "proc/meminfo": "MemTotal: 536870912 kB\nCommitLimit: 4194304 kB\n"
            "Committed_AS: 2097152 kB",
        },
        HOST,
        "overcommit",
        "2.0 GiB",
    ),
)
