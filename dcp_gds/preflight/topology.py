"""Topology: findings on what lies between the GPUs and the drives of a path."""

from __future__ import annotations

from collections.abc import Iterator

from dcp_gds.preflight.blockdevice import controllers, devices_below
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.mounts import find_mount
from dcp_gds.preflight.node import DRIVER, Node
from dcp_gds.preflight.pci import Distance, distance, pci_path, redirects

__all__ = ["check_acs", "check_distance", "check_iommu"]

GROUPS = "sys/kernel/iommu_groups"
PCI = "sys/bus/pci/devices"


def check_iommu(node: Node) -> Iterator[Finding]:
    """Whether an IOMMU translates what a drive and a GPU send each other."""
    if not node.has_gpu:
        return
    host = node.host
    kinds = {host.get(f"{GROUPS}/{group}/type") for group in host.names(GROUPS)}
    translated = sorted(kind for kind in kinds if kind and kind.startswith("DMA"))
    # NVIDIA's guide has the IOMMU switched off on x86 only.
    if translated and "aarch64" not in (host.get(DRIVER) or ""):
        observed = f"the IOMMU translates ({', '.join(translated)})"
        remedy = "boot with iommu=pt, or switch the IOMMU off in the firmware"
        yield Finding("iommu", Status.WARN, observed, "off or iommu=pt", remedy, f"/{GROUPS}")
    else:
        shown = f"translates ({', '.join(translated)}), as on arm" if translated else "lets through"
        observed = f"the IOMMU {shown}" if kinds else "off"
        yield Finding("iommu", Status.OK, observed, source=f"/{GROUPS}")


def check_distance(node: Node, path: str, facts: Facts) -> Iterator[Finding]:
    """How far the nearest GPU of each drive is."""
    far, shown = [], []
    for drive, near, gpu in _pairs(node, path, facts):
        shown.append(f"{drive} to {gpu[-1] if gpu else 'a GPU'}: {near}")
        if near is Distance.ACROSS:
            far.append(drive)
    if far:
        observed = f"no GPU is on the socket of {', '.join(far)} ({'; '.join(shown)})"
        remedy = "put drives below the PCIe switch or socket of the GPUs: `nvidia-smi topo -m`"
        yield Finding("distance", Status.WARN, observed, Distance.SWITCH, remedy, f"/{PCI}")
    elif shown:
        yield Finding("distance", Status.OK, "; ".join(shown), source=f"/{PCI}")


def check_acs(node: Node, path: str, facts: Facts) -> Iterator[Finding]:
    """Whether a switch between a GPU and a drive sends their traffic up to the CPU (ACS)."""
    bridges: set[str] = set()
    for drive, near, gpu in _pairs(node, path, facts):
        if near is Distance.SWITCH:
            own = {step for name in controllers(node.host, drive) for step in _path(node, name)}
            bridges |= {step for step in own ^ set(gpu) if step != gpu[-1]} - _ends(node, drive)
    answers = {address: redirects(node.host, address) for address in sorted(bridges)}
    up = [address for address, answer in answers.items() if answer]
    unread = [address for address, answer in answers.items() if answer is None]
    if up:
        observed = f"ACS sends traffic between GPU and drive up to the CPU at {', '.join(up)}"
        remedy = f"switch ACS off in the firmware, or: setpci -s {up[0]} ECAP_ACS+6.w=0000"
        yield Finding("acs", Status.WARN, observed, "no redirect", remedy, f"/{PCI}")
    elif unread:
        observed = f"ACS registers of {', '.join(unread)} are for root to read"
        yield Finding("acs", Status.SKIP, observed, source=f"/{PCI}")


def _pairs(node: Node, path: str, facts: Facts) -> Iterator[tuple[str, Distance, tuple[str, ...]]]:
    """Each local NVMe drive under a path, its nearest GPU's distance, and that GPU's PCI path."""
    if not node.has_gpu:
        return
    host = node.host
    gpus = [pci_path(host, f"{PCI}/{gpu.address}") for gpu in node.gpus if gpu.address]
    mount = find_mount(host, path, mount_id=facts.seen.get("mount_id"))
    for device in devices_below(host, mount):
        if device.kind != "nvme":
            continue
        own = next((_path(node, name) for name in controllers(host, device.name)), ())
        if gpus:
            near = [(distance(host, gpu, own), gpu) for gpu in gpus]
            yield (device.name, *min(near, key=lambda each: list(Distance).index(each[0])))


def _path(node: Node, controller: str) -> tuple[str, ...]:
    """Where an NVMe controller sits."""
    return pci_path(node.host, f"sys/class/nvme/{controller}/device")


def _ends(node: Node, drive: str) -> set[str]:
    """The drive's own functions, which are no bridges."""
    return {path[-1] for name in controllers(node.host, drive) if (path := _path(node, name))}
