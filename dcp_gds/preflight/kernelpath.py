"""Kernelpath: findings on how the kernel moves bytes between a drive and a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dcp_gds.preflight.cufile import settings
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.node import DRIVER, Node

__all__ = ["check_kernel_path"]

FS = "proc/driver/nvidia-fs"
REGISTRY_WORDS = ("RMForceStaticBar1=1", "RmForceDisableIomapWC=1")


def check_kernel_path(node: Node) -> Iterator[Finding]:
    """Whether the kernel can move bytes between drive and GPU: by nvidia-fs or by P2PDMA."""
    if not node.has_gpu:
        return
    if settings(node).get("use_pci_p2pdma") is True:
        yield from _p2pdma(node.host)
    else:
        yield from _nvidia_fs(node.host)


def _nvidia_fs(host: Host) -> Iterator[Finding]:
    """Whether nvidia-fs is loaded, visible, and known to the nvme module."""
    source = f"/{FS}/version"
    if not host.exists("sys/module/nvidia_fs"):
        yield _not_loaded(host, source)
        return
    if not any(name.startswith("nvidia-fs") for name in host.names("dev")):
        observed = "nvidia-fs is loaded, but there is no /dev/nvidia-fs*"
        remedy = "in a container pass the devices: docker run --device=/dev/nvidia-fs0 ..."
        yield Finding("nvidia-fs", Status.WARN, observed, "/dev/nvidia-fs0", remedy, "/dev")
        return
    if not re.search(r"^nvme\b", host.get(f"{FS}/modules") or "", re.MULTILINE):
        observed = "the nvme module is not registered with nvidia-fs"
        remedy = "load the nvme module of MLNX_OFED or DOCA (--with-nvmf), or set up P2PDMA"
        source = f"/{FS}/modules"
        yield Finding("nvidia-fs", Status.WARN, observed, "nvme listed", remedy, source)
        return
    if not host.exists("run/udev"):
        remedy = "in a container: docker run -v /run/udev:/run/udev:ro ..."
        yield Finding("nvidia-fs", Status.WARN, "no /run/udev", "/run/udev", remedy, "/run/udev")
        return
    yield Finding("nvidia-fs", Status.OK, f"{host.get(f'{FS}/version')}, nvme", source=source)


def _not_loaded(host: Host, source: str) -> Finding:
    """Why nvidia-fs is not loaded, as far as its files tell."""
    release = host.get("proc/sys/kernel/osrelease") or ""
    installed = "nvidia-fs.ko" in (host.get(f"lib/modules/{release}/modules.dep") or "")
    closed = "Open Kernel Module" not in (host.get(DRIVER) or "")
    if installed and closed:
        observed = "nvidia-fs is installed for this kernel but not loaded: it needs symbols of the"
        observed += " driver's open kernel module, and the closed one is loaded"
        remedy = "install nvidia-open and reboot; until then `dmesg` has Unknown symbol nvidia_p2p_"
    elif installed:
        observed = "nvidia-fs is installed for this kernel but not loaded"
        remedy = "modprobe nvidia-fs; if that fails, `dmesg | grep nvidia_fs` says why"
    else:
        observed = "nvidia-fs is not loaded"
        remedy = "install nvidia-gds and modprobe nvidia-fs, or set up P2PDMA in cufile.json"
    return Finding("nvidia-fs", Status.WARN, observed, "loaded", remedy, source)


def _p2pdma(host: Host) -> Iterator[Finding]:
    """Each condition of P2PDMA."""
    parameters = host.get("proc/driver/nvidia/params") or ""
    release = host.get("proc/sys/kernel/osrelease") or ""
    config = host.get(f"boot/config-{release}")
    multipath = host.get("sys/module/nvme_core/parameters/multipath")
    words = [word for word in REGISTRY_WORDS if word.lower() not in parameters.lower()]
    problems: list[tuple[str, str, str]] = []
    if "Open Kernel Module" not in (host.get(DRIVER) or ""):
        remedy = "install the driver's open kernel modules (package nvidia-open)"
        problems.append(("the driver's kernel module is the closed one", "open", remedy))
    if config is not None and "CONFIG_PCI_P2PDMA=y" not in config:
        problems.append((f"Linux {release} has no CONFIG_PCI_P2PDMA", "=y", "use another kernel"))
    if words:
        setting = f'options nvidia NVreg_RegistryDwords="{";".join(REGISTRY_WORDS)};"'
        remedy = f"put into /etc/modprobe.d/nvidia.conf and reboot: {setting}"
        problems.append((f"the driver runs without {' and '.join(words)}", "set", remedy))
    if multipath == "Y":
        remedy = "put into /etc/modprobe.d/nvme.conf and reboot: options nvme_core multipath=N"
        problems.append(("nvme_core runs with multipath=Y", "N", remedy))
    for observed, expected, remedy in problems:
        yield Finding("p2pdma", Status.WARN, observed, expected, remedy)
    if not problems:
        yield Finding("p2pdma", Status.OK, "each condition is met, as far as can be seen")
