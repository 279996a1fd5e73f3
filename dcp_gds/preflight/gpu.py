"""Gpu: findings on the driver, and on what GPUDirect Storage needs besides a fitting path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dcp_gds.io.cufilejson import SETTINGS_DEFAULT, SETTINGS_VARIABLE, parse_settings
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import Host, UnreadableError

__all__ = ["check_allocator", "check_cufile", "check_driver", "check_iommu", "check_kernel_path"]

DRIVER = "proc/driver/nvidia/version"
FS = "proc/driver/nvidia-fs"
# Where the CUDA toolkit and distributions put the library.
LIBRARY_DIRECTORIES = (
    "usr/local/cuda/targets/x86_64-linux/lib",
    "usr/local/cuda/targets/sbsa-linux/lib",
    "usr/local/cuda/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
)
REGISTRY_WORDS = ("RMForceStaticBar1=1", "RmForceDisableIomapWC=1")


def check_driver(host: Host) -> Iterator[Finding]:
    """The NVIDIA driver, its kind of kernel module, and the number of GPUs."""
    if "microsoft" in (host.get("proc/sys/kernel/osrelease") or "").lower():
        remedy = "run on Linux itself; here engine='direct' is the best there is"
        yield Finding("driver", Status.WARN, "WSL: cuFile's driver cannot run", "Linux", remedy)
        return
    version = host.read(DRIVER).splitlines()[0].removeprefix("NVRM version:").strip()
    module = "open" if "Open Kernel Module" in version else "closed"
    gpus = len(host.names("proc/driver/nvidia/gpus"))
    observed = f"{gpus} GPUs, {module} kernel module, {' '.join(version.split())}"
    yield Finding("driver", Status.OK, observed, source=f"/{DRIVER}")


def check_kernel_path(host: Host, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the kernel can move bytes between drive and GPU: by nvidia-fs or by P2PDMA."""
    if not has_gpu(host):
        return
    if _settings(host, environment).get("use_pci_p2pdma") is True:
        yield from _p2pdma(host)
    else:
        yield from _nvidia_fs(host)


def check_cufile(host: Host, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether libcufile is there, and the settings that it takes."""
    if not has_gpu(host):
        return
    found = [
        f"/{directory}/{name}"
        for directory in LIBRARY_DIRECTORIES
        for name in host.names(directory)
        if name.startswith("libcufile.so")
    ]
    if found:
        yield Finding("libcufile", Status.OK, found[0], source=found[0])
    else:
        remedy = "install gds-tools or pip's nvidia-cufile (dcp-gds's extra cu12 or cu13 has it)"
        observed = "libcufile.so is in no usual directory"
        yield Finding("libcufile", Status.WARN, observed, "libcufile.so", remedy)
    name = _settings_file(environment)
    settings = _settings(host, environment)
    shown = ", ".join(f"{key}={value}" for key, value in settings.items() if key in SHOWN)
    yield Finding("cufile-json", Status.OK, shown or "defaults", source=f"/{name}")


def check_iommu(host: Host) -> Iterator[Finding]:
    """Whether an IOMMU translates what a drive and a GPU send each other."""
    if not has_gpu(host):
        return
    place = "sys/kernel/iommu_groups"
    kinds = {host.get(f"{place}/{group}/type") for group in host.names(place)}
    translated = sorted(kind for kind in kinds if kind and kind.startswith("DMA"))
    if translated:
        observed = f"the IOMMU translates ({', '.join(translated)})"
        remedy = "boot with iommu=pt, or switch the IOMMU off in the firmware"
        yield Finding("iommu", Status.WARN, observed, "off or iommu=pt", remedy, f"/{place}")
    else:
        yield Finding("iommu", Status.OK, "off, or passing through", source=f"/{place}")


def check_allocator(host: Host, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether torch's allocator hands out memory that cuFile cannot register."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if has_gpu(host) and "expandable_segments:true" in environment.get(name, "").lower():
            observed = f"{name}={environment[name]}: such memory cannot be registered with cuFile"
            remedy = "nothing if writes go through a window; else expandable_segments:False"
            yield Finding(
                "allocator", Status.WARN, observed, "no expandable segments", remedy, name
            )


def has_gpu(host: Host) -> bool:
    """Whether there is an NVIDIA driver."""
    return host.exists(DRIVER) or host.exists("dev/dxg")


SHOWN = ("allow_compat_mode", "use_pci_p2pdma", "max_device_cache_size_kb", "io_batchsize")


def _nvidia_fs(host: Host) -> Iterator[Finding]:
    """Whether nvidia-fs is loaded, visible, and known to the nvme module."""
    source = f"/{FS}/version"
    if not host.exists("sys/module/nvidia_fs"):
        remedy = "modprobe nvidia-fs (package nvidia-gds), or set up P2PDMA in cufile.json"
        yield Finding("nvidia-fs", Status.WARN, "nvidia-fs is not loaded", "loaded", remedy, source)
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


def _settings_file(environment: Mapping[str, str]) -> str:
    """The file that cuFile takes its settings from."""
    return environment.get(SETTINGS_VARIABLE, SETTINGS_DEFAULT).lstrip("/")


def _settings(host: Host, environment: Mapping[str, str]) -> dict[str, Any]:
    """The properties in cufile.json, which may have comments; none if it is missing."""
    name = _settings_file(environment)
    text = host.get(name)
    if text is None:
        return {}
    try:
        properties = parse_settings(text).get("properties", {})
    except ValueError as error:
        raise UnreadableError(f"/{name}: {error}") from error
    return dict(properties)
