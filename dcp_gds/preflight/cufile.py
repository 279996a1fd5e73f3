"""Cufile: findings on libcufile, its settings, and what it did when it was tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from dcp_gds.preflight.cufileerror import CUFILE_ERRORS
from dcp_gds.preflight.cufilejson import SETTINGS_DEFAULT, SETTINGS_VARIABLE, parse_settings
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Status
from dcp_gds.preflight.host import UnreadableError
from dcp_gds.preflight.node import Node

__all__ = ["check_cufile", "check_cufile_probe", "find_libraries", "settings"]

# Where the CUDA toolkit and distributions put the library.
DIRECTORIES = (
    "usr/local/cuda/targets/x86_64-linux/lib",
    "usr/local/cuda/targets/sbsa-linux/lib",
    "usr/local/cuda/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
)
SHOWN = (
    "allow_compat_mode",
    "use_pci_p2pdma",
    "max_device_cache_size_kb",
    "max_device_pinned_mem_size_kb",
    "io_batchsize",
    "rdma_dev_addr_list",
)
REMEDY = "read cufile.log of a run with CUFILE_LOGGING_LEVEL=TRACE; engine='direct' works meanwhile"


def check_cufile(node: Node) -> Iterator[Finding]:
    """Whether libcufile is there, which one, and the settings that it takes."""
    if not node.has_gpu:
        return
    found = find_libraries(node)
    real = dict.fromkeys(PurePath(_real(node, each)).name for each in found)
    if len(real) > 1:
        observed = (
            f"several libcufile: {', '.join(f'/{each}' for each in found)}; the first one is loaded"
        )
        remedy = "keep one, or name its directory first in LD_LIBRARY_PATH"
        yield Finding("libcufile-versions", Status.WARN, observed, "one", remedy, f"/{found[0]}")
    if found:
        observed = f"/{found[0]} ({next(iter(real))})"
        yield Finding("libcufile", Status.OK, observed, source=f"/{found[0]}")
    else:
        remedy = "install gds-tools or pip's nvidia-cufile (dcp-gds's extra cu12 or cu13 has it)"
        observed = "libcufile.so is in no usual directory"
        yield Finding("libcufile", Status.WARN, observed, "libcufile.so", remedy)
    chosen = settings(node)
    shown = ", ".join(f"{key}={value}" for key, value in chosen.items() if key in SHOWN)
    yield Finding("cufile-json", Status.OK, shown or "defaults", source=f"/{_settings_file(node)}")


def check_cufile_probe(node: Node, path: str, cufile: Facts | None) -> Iterator[Finding]:
    """What cuFile did when GPU memory was written to the path and read back, compat forbidden."""
    if not node.has_gpu or cufile is None:
        return
    seen = cufile.seen
    expected = "GPU memory written and read back"
    if seen.get("wrote") and seen.get("read"):
        observed = f"GPU memory came back as written from {path}, without compat mode"
        if speed := seen.get("bytes_per_s"):
            observed += f"; {speed / 1e9:.2f} GB/s in a short write"
        yield Finding("cufile-probe", Status.OK, observed, source="cuFileWrite")
    elif seen and "step" not in seen:
        wrong = "written" if not seen.get("wrote") else "read"
        observed = f"cuFile changed bytes that it has {wrong} on {path}"
        remedy = "do not use engine='gds' here, and report it to NVIDIA"
        yield Finding("cufile-probe", Status.FAIL, observed, expected, remedy, "cuFileWrite")
    elif seen:
        meaning, remedy = CUFILE_ERRORS.get(seen.get("code", 0), ("", REMEDY))
        why = meaning or seen.get("error") or "no meaning known"
        number = f" {seen['code']}" if "code" in seen else ""
        observed = f"cuFile does not work on {path}: {seen['step']} gave{number} ({why})"
        yield Finding("cufile-probe", Status.WARN, observed, expected, remedy, str(seen["step"]))
    if cufile.failure:
        observed = f"a process that used cuFile on {path} {cufile.failure}"
        yield Finding("cufile-exit", Status.WARN, observed, "ends by itself", REMEDY, "cuFile")


def find_libraries(node: Node) -> list[str]:
    """Return every libcufile below the host's root, the one that the loader takes first."""
    places = [*node.environment.get("LD_LIBRARY_PATH", "").split(":")]
    places += [node.packages.get("libcufile", "")]
    directories = [place.strip("/") for place in places if place] + list(DIRECTORIES)
    found: dict[str, str] = {}
    for directory in dict.fromkeys(directories):
        names = [each for each in node.host.names(directory) if each.startswith("libcufile.so")]
        # A directory has one library under several names; directories may be links to each other.
        if names:
            found.setdefault(_real(node, f"{directory}/{names[0]}"), f"{directory}/{names[0]}")
    return list(found.values())


def settings(node: Node) -> dict[str, Any]:
    """Return the properties in cufile.json, which may have comments; none if it is missing."""
    name = _settings_file(node)
    text = node.host.get(name)
    if text is None:
        return {}
    try:
        properties = parse_settings(text).get("properties", {})
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"/{name}: {error}") from error
    return dict(properties)


def _settings_file(node: Node) -> str:
    """The file that cuFile takes its settings from."""
    return node.environment.get(SETTINGS_VARIABLE, SETTINGS_DEFAULT).lstrip("/")


def _real(node: Node, name: str) -> str:
    """The file that links lead to."""
    return node.host.real(name)
