"""Container: a finding on whether this is one, and what it hides of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dcp_gds.preflight.blockdevice import devices_below
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.mounts import find_mount
from dcp_gds.preflight.node import Node

__all__ = ["check_container"]

# Files that container engines put there, and words in the cgroup of the first process.
MARKS = {".dockerenv": "docker", "run/.containerenv": "podman"}
WORDS = re.compile(r"docker|kubepods|containerd|crio|libpod|lxc")
REMEDY = (
    "docker run --gpus all --device=/dev/nvidia-fs0 -v /run/udev:/run/udev:ro -v"
    " /mnt/nvme:/mnt/nvme, and --device for the drive"
)


def check_container(node: Node, path: str, facts: Facts) -> Iterator[Finding]:
    """What cuFile looks for and a container may hide: udev's data, device nodes, system calls."""
    kind = _kind(node)
    if kind is None:
        yield Finding("container", Status.OK, "no container", source="/proc/1/cgroup")
        return
    hidden = list(_hidden(node, path, facts))
    status = re.search(r"^Seccomp:\s*(\d)", node.host.get("proc/self/status") or "", re.MULTILINE)
    filtered = "; system calls are filtered (seccomp)" if status and status[1] == "2" else ""
    if hidden and node.has_gpu:
        observed = f"{kind} container hides {', '.join(hidden)}{filtered}"
        yield Finding("container", Status.WARN, observed, "visible", REMEDY, "/dev, /run/udev")
    else:
        yield Finding(
            "container", Status.OK, f"{kind} container{filtered}", source="/proc/1/cgroup"
        )


def _kind(node: Node) -> str | None:
    """The engine that made the container; None outside of one."""
    for name, kind in MARKS.items():
        if node.host.exists(name):
            return kind
    if node.host.exists("var/run/secrets/kubernetes.io"):
        return "kubernetes"
    found = WORDS.search(node.host.get("proc/1/cgroup") or "")
    return found[0] if found else node.environment.get("container")


def _hidden(node: Node, path: str, facts: Facts) -> Iterator[str]:
    """What should be there, and is not."""
    if not node.host.exists("run/udev"):
        yield "/run/udev"
    devices = node.host.names("dev")
    for start in ("nvidia0", "nvidia-fs"):
        wanted = start != "nvidia-fs" or node.host.exists("sys/module/nvidia_fs")
        if wanted and not any(name.startswith(start) for name in devices):
            yield f"/dev/{start}*"
    mount = find_mount(node.host, path, mount_id=facts.seen.get("mount_id"))
    for device in devices_below(node.host, mount):
        if device.name not in devices:
            yield f"/dev/{device.name}"
