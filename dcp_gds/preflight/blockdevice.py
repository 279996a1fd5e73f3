"""BlockDevice: what lies below a filesystem, through partitions, RAID, LVM, LUKS, multipath."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dcp_gds.preflight.host import Host
from dcp_gds.preflight.mounts import MountLine

__all__ = ["BlockDevice", "controllers", "devices_below"]

# A stack of devices is a few layers deep; a copy of /sys with links in a circle must end.
DEPTH_MAX = 16
CONTROLLER = re.compile(r"nvme\d+")


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """A device, and what it is: "nvme", "nvme-fabric", "partition", "raid0", "crypt", "other"..."""

    name: str
    kind: str


def devices_below(host: Host, mount: MountLine) -> list[BlockDevice]:
    """Return the devices from the filesystem down to the drives; none if none is named."""
    name = _named(host, mount.device) or mount.source.removeprefix("/dev/")
    found: dict[str, BlockDevice] = {}
    _walk(host, name.replace("/", "!"), found, depth=0)
    return list(found.values())


def controllers(host: Host, name: str) -> list[str]:
    """Return the controllers of an NVMe namespace: "nvme0" for "nvme0n1"."""
    parts = host.real(f"sys/class/block/{name}").split("/")
    above = parts[-2] if len(parts) > 1 else ""
    if CONTROLLER.fullmatch(above):
        return [above]
    # With native multipath a namespace lies below its subsystem, which lists its controllers.
    listed = [each for each in host.names("/".join(parts[:-1])) if CONTROLLER.fullmatch(each)]
    return listed or [name.rpartition("n")[0]]


def _walk(host: Host, name: str, found: dict[str, BlockDevice], *, depth: int) -> None:
    """Add a device and those below it."""
    place = f"sys/class/block/{name}"
    if name in found or depth > DEPTH_MAX or not host.exists(place):
        return
    real = host.real(place)
    found[name] = BlockDevice(name, _kind(host, name))
    if host.exists(f"{place}/partition"):
        _walk(host, real.split("/")[-2], found, depth=depth + 1)
    for below in host.names(f"{place}/slaves"):
        _walk(host, below, found, depth=depth + 1)


def _kind(host: Host, name: str) -> str:
    """What a device is, from what /sys has for it."""
    place = f"sys/class/block/{name}"
    if host.exists(f"{place}/partition"):
        return "partition"
    level = host.get(f"{place}/md/level")
    if level is not None:
        return level or "md"
    uuid = host.get(f"{place}/dm/uuid")
    if uuid is not None:
        # device-mapper's users mark theirs: "LVM-...", "CRYPT-LUKS2-...", "mpath-...".
        return {"LVM": "lvm", "CRYPT": "crypt", "mpath": "multipath"}.get(uuid.split("-")[0], "dm")
    if name.startswith("nvme"):
        known = [host.get(f"sys/class/nvme/{each}/transport") for each in controllers(host, name)]
        foreign = next((each for each in known if each not in {None, "pcie"}), None)
        return f"nvme over {foreign}" if foreign else "nvme"
    return "other"


def _named(host: Host, device: str) -> str:
    """The name of the device with these numbers."""
    uevent = host.get(f"sys/dev/block/{device}/uevent") or ""
    facts = dict(line.partition("=")[::2] for line in uevent.splitlines())
    return facts.get("DEVNAME", "")
