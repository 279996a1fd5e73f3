"""Environment: what the figures were made on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import psutil

from dcp_gds.io.mount import mount_of
from dcp_gds.preflight.blockdevice import devices_below
from dcp_gds.preflight.host import Host, UnreadableError
from dcp_gds.preflight.mounts import find_mount

__all__ = ["environment_of"]

PACKAGES = ("dcp-gds", "torch", "numpy")


def environment_of(directory: Path) -> dict[str, str]:
    """Describe the machine, the versions and the filesystem of `directory`, ready for JSON."""
    facts = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpu": f"{_cpu_model()}, {os.cpu_count()} CPUs",
        "memory": f"{psutil.virtual_memory().total / (1 << 30):.1f} GiB",
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "mount": _mount(directory),
        "drive": _drive(directory),
        "python": platform.python_version(),
    }
    return facts | {name: _version(name) for name in PACKAGES}


def _cpu_model() -> str:
    """The processor's name, as far as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _mount(directory: Path) -> str:
    mount = mount_of(directory)
    return "unknown" if mount is None else f"{mount.filesystem} ({mount.source} on {mount.point})"


def _drive(directory: Path) -> str:
    """The devices below the filesystem, each with what it is, its model and its size."""
    host = Host()
    try:
        mount = find_mount(host, str(directory.resolve()), mount_id=None)
    except UnreadableError:
        return "unknown"
    devices = devices_below(host, mount)
    shown = []
    for device in devices:
        place = f"sys/class/block/{device.name}"
        # In sectors of 512 bytes, whatever those of the drive are.
        gb = int(host.get(f"{place}/size") or 0) * 512 / 1e9
        facts = [device.kind, host.get(f"{place}/device/model") or "", f"{gb:.0f} GB"]
        shown.append(f"{device.name} ({', '.join(fact.strip() for fact in facts if fact)})")
    return ", ".join(shown) or "unknown"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
