"""Gpu: findings on the driver, the GPUs' memory and the packages that use them."""

from __future__ import annotations

from collections.abc import Iterator

from dcp_gds.hostmem.budget import FRACTION_DEFAULT
from dcp_gds.hostmem.cgrouplimit import read_cgroup_limit
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import UnreadableError
from dcp_gds.preflight.meminfo import total_bytes
from dcp_gds.preflight.node import DRIVER, Gpu, Node
from dcp_gds.preflight.pci import largest_region_bytes

__all__ = ["check_allocator", "check_bar1", "check_driver", "check_host_memory", "check_packages"]

MIB, GIB = 1 << 20, 1 << 30
# GDSWriter's largest registered window; a GPU with less BAR1 memory left cannot register it.
WINDOW_BYTES = 64 * MIB


def check_driver(node: Node) -> Iterator[Finding]:
    """The NVIDIA driver, its kind of kernel module, and the GPUs."""
    host = node.host
    if "microsoft" in (host.get("proc/sys/kernel/osrelease") or "").lower():
        remedy = "run on Linux itself; here engine='direct' is the best there is"
        yield Finding("driver", Status.WARN, "WSL: cuFile's driver cannot run", "Linux", remedy)
        return
    if not node.has_gpu:
        yield Finding("driver", Status.SKIP, "no NVIDIA driver", source=f"/{DRIVER}")
        return
    version = host.read(DRIVER).splitlines()[0].removeprefix("NVRM version:").strip()
    module = "open" if "Open Kernel Module" in version else "closed"
    cuda = f", CUDA up to {node.nvml.seen['cuda']}" if node.nvml.seen.get("cuda") else ""
    names = " and ".join(sorted({gpu.name for gpu in node.gpus if gpu.name}))
    gpus = f"{len(node.gpus)} GPU{'' if len(node.gpus) == 1 else 's'}"
    gpus += f" ({names})" if names else ""
    observed = f"{gpus}, {module} kernel module, {' '.join(version.split())}{cuda}"
    yield Finding("driver", Status.OK, observed, source=f"/{DRIVER}")


def check_bar1(node: Node) -> Iterator[Finding]:
    """Whether BAR1, through which a drive reaches GPU memory, has room for a registered window."""
    gpus = [_with_bar1(node, gpu) for gpu in node.gpus]
    told = [gpu for gpu in gpus if gpu.bar1_bytes]
    if not node.has_gpu or not gpus:
        return
    if not told:
        raise UnreadableError(f"BAR1: NVML {_why_silent(node)}, and /sys has no regions")
    tight = [gpu for gpu in told if gpu.bar1_free_bytes < WINDOW_BYTES]
    shown = tight or told
    observed = "; ".join(dict.fromkeys(_bar1_text(node, gpu) for gpu in shown))
    source = "NVML" if node.nvml.seen.get("gpus") else "/sys/bus/pci/devices"
    if tight:
        expected = f"{WINDOW_BYTES // MIB} MiB free"
        remedy = "run fewer processes on the GPU, or one with a larger BAR1; see who holds it:"
        remedy += " nvidia-smi -q -d MEMORY,PIDS"
        yield Finding("bar1", Status.WARN, observed, expected, remedy, source)
    else:
        yield Finding("bar1", Status.OK, observed, source=source)


def check_allocator(node: Node) -> Iterator[Finding]:
    """Whether torch's allocator hands out memory that cuFile cannot register."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        setting = node.environment.get(name, "")
        if node.has_gpu and "expandable_segments:true" in setting.lower().replace(" ", ""):
            observed = f"{name}={setting}: such memory cannot be registered with cuFile"
            remedy = "nothing if writes go through a window; else expandable_segments:False"
            yield Finding(
                "allocator", Status.WARN, observed, "no expandable segments", remedy, name
            )


def check_packages(node: Node) -> Iterator[Finding]:
    """Whether torch, kvikio and the driver are for CUDA versions that go together."""
    packages = node.packages
    if not node.has_gpu or not packages:
        return
    kvikio = next((name for name in packages if name.startswith("kvikio-cu")), "")
    torch = packages.get("torch-cuda", "")
    major = torch.partition(".")[0]
    wanted = {major, kvikio.removeprefix("kvikio-cu")} - {""}
    driver = str(node.nvml.seen.get("cuda", ""))
    observed = f"torch {packages.get('torch', 'not installed')}"
    observed += f" for CUDA {torch}" if torch else ""
    observed += f", {kvikio} {packages[kvikio]}" if kvikio else ", no kvikio"
    source = "package metadata"
    if len(wanted) > 1:
        remedy = f"pip install kvikio-cu{major}, and remove {kvikio}"
        expected = "torch and kvikio for one CUDA version"
        yield Finding("packages", Status.WARN, observed, expected, remedy, source)
    elif driver and wanted and int(driver.partition(".")[0]) < int(max(wanted)):
        observed += f", but the driver knows CUDA up to {driver}"
        remedy = "install a newer driver, or packages for an older CUDA version"
        yield Finding("packages", Status.WARN, observed, f"CUDA {max(wanted)}", remedy, source)
    else:
        mode = node.environment.get("KVIKIO_COMPAT_MODE", "AUTO").upper()
        yield from _kvikio(f"{observed}; KVIKIO_COMPAT_MODE={mode}", mode)


def check_host_memory(node: Node) -> Iterator[Finding]:
    """Whether what fills the GPUs fits under the ceiling of staging memory."""
    gpu_bytes = sum(gpu.memory_bytes for gpu in node.gpus)
    if not node.has_gpu:
        return
    if not gpu_bytes:
        raise UnreadableError(f"GPU memory: NVML {_why_silent(node)}")
    limit = read_cgroup_limit(node.host.root)
    total = total_bytes(node.host)
    ceiling = FRACTION_DEFAULT * (min(total, limit.limit) if limit else total)
    observed = f"the GPUs hold {gpu_bytes / GIB:.0f} GiB, and staging may take"
    observed += f" {ceiling / GIB:.0f} GiB ({FRACTION_DEFAULT:.0%} of the host's)"
    if ceiling < gpu_bytes:
        remedy = "`dcp-gds plan` says what fits; a larger state blocks longer, or guard() it"
        expected = f"{gpu_bytes / GIB:.0f} GiB, to stage all of it"
        yield Finding("host-memory", Status.WARN, observed, expected, remedy, "/proc/meminfo")
    else:
        yield Finding("host-memory", Status.OK, observed, source="/proc/meminfo")


def _kvikio(observed: str, mode: str) -> Iterator[Finding]:
    """What kvikio's own compat mode will do."""
    if mode in {"ON", "TRUE", "YES", "1"}:
        remedy = "unset KVIKIO_COMPAT_MODE, or set it to OFF"
        yield Finding("packages", Status.WARN, observed, "OFF or AUTO", remedy, "environment")
    else:
        yield Finding("packages", Status.OK, observed, source="package metadata")


def _with_bar1(node: Node, gpu: Gpu) -> Gpu:
    """A GPU, with BAR1's length from /sys where the driver's library told nothing."""
    if gpu.bar1_bytes:
        return gpu
    length = largest_region_bytes(node.host, gpu.address)
    return Gpu(gpu.name, gpu.address, gpu.memory_bytes, length, length)


def _bar1_text(node: Node, gpu: Gpu) -> str:
    """One GPU's BAR1."""
    free = f"{gpu.bar1_free_bytes // MIB} of " if node.nvml.seen.get("gpus") else ""
    suffix = " free" if free else ", how much is free is unknown"
    return f"BAR1 of {gpu.name or gpu.address}: {free}{gpu.bar1_bytes // MIB} MiB{suffix}"


def _why_silent(node: Node) -> str:
    """Why the driver's library told nothing."""
    return node.nvml.failure or str(node.nvml.seen.get("error", "knows no GPU"))
