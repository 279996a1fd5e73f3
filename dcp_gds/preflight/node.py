"""Node: what is known of a machine whichever path is asked about."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcp_gds.preflight.facts import Facts, ask_nvml
from dcp_gds.preflight.host import Host

__all__ = ["Gpu", "Node", "find_node"]

DRIVER = "proc/driver/nvidia/version"
PACKAGES = ("torch", "kvikio-cu12", "kvikio-cu13", "nvidia-cufile-cu12", "nvidia-cufile")
NOT_ASKED = Facts({}, "was not asked")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU; 0 bytes and empty text where the driver does not tell."""

    name: str = ""
    address: str = ""
    memory_bytes: int = 0
    bar1_bytes: int = 0
    bar1_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or a copy of what another one's files say.

    Parameters
    ----------
    host
        Its files.
    environment
        Variables of the process that will save.
    packages
        Versions of installed Python packages by name; "torch-cuda" is the CUDA that torch is for,
        and "libcufile" a directory where pip has put that library.
    nvml
        What the driver's management library says.
    """

    host: Host
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    nvml: Facts = NOT_ASKED

    @property
    def has_gpu(self) -> bool:
        """Whether there is an NVIDIA driver, WSL's included."""
        return self.host.exists(DRIVER) or self.host.exists("dev/dxg")

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the driver knows; without its library only their addresses."""
        told = self.nvml.seen.get("gpus")
        if told:
            return tuple(Gpu(**_known(each)) for each in told)
        return tuple(Gpu(address=name) for name in self.host.names("proc/driver/nvidia/gpus"))


def find_node(*, ask: bool = True) -> Node:
    """Return this machine; without `ask` nothing is started, and the GPUs' memory is unknown."""
    host = Host()
    nvml = ask_nvml() if ask and host.exists(DRIVER) else NOT_ASKED
    return Node(host, os.environ, _packages(), nvml)


def _known(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a Gpu has a field for."""
    return {key: value for key, value in told.items() if key in Gpu.__dataclass_fields__}


def _packages() -> dict[str, str]:
    """Versions of the packages that matter, from their files: importing them takes seconds."""
    found = {}
    for name in PACKAGES:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        if name == "torch":
            found["torch-cuda"] = _cuda_of_torch(distribution)
        elif name.startswith("nvidia-cufile"):
            found["libcufile"] = _library_directory(distribution)
    return found


def _cuda_of_torch(distribution: importlib.metadata.Distribution) -> str:
    """The CUDA version that torch was built for; empty for a build without."""
    try:
        text = Path(str(distribution.locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=]*= '([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else ""


def _library_directory(distribution: importlib.metadata.Distribution) -> str:
    """Where pip has put libcufile.so; empty if it is not among the package's files."""
    for file in distribution.files or ():
        if file.name.startswith("libcufile.so"):
            return str(Path(str(distribution.locate_file(file))).parent)
    return ""
