"""GPUs, packages and drives' health are told by programs and files, or told to be unknown.

Method: a small NVML made by the C compiler; package metadata in a directory; health logs as bytes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dcp_gds.preflight.facts import ask_nvml, ask_smart
from dcp_gds.preflight.host import Host
from dcp_gds.preflight.node import Gpu, Node, find_node
from dcp_gds.preflight.smartprobe import _read, parse

NVML = r"""
#include <string.h>
typedef unsigned long long u64;
struct pci { char legacy[16]; unsigned numbers[5]; char address[32]; };
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = 13020; return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** handle) {
    *handle = (void*)(u64)(i + 1);
    return 0;
}
int nvmlDeviceGetName(void* handle, char* name, unsigned room) {
    strncpy(name, "NVIDIA H100", room);
    return 0;
}
int nvmlDeviceGetPciInfo_v3(void* handle, struct pci* pci) {
    strcpy(pci->address, "00000000:8B:00.0");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, u64* memory) { memory[0] = 80; return 0; }
int nvmlDeviceGetBAR1MemoryInfo(void* handle, u64* memory) {
    memory[0] = 128, memory[1] = 100, memory[2] = 28;
    return (u64)handle == 2 ? 3 : 0;
}
"""


def make_nvml(directory: Path, *, init: int) -> None:
    """Compile the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler"
    source = directory / "nvml.c"
    source.write_text(NVML)
    target = directory / "libnvidia-ml.so.1"
    command = [compiler, f"-DINIT={init}", "-shared", "-fPIC", "-o", str(target), str(source)]
    subprocess.run(command, check=True)


def test_gpus_are_those_of_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_nvml(tmp_path, init=0)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    told = ask_nvml(timeout_s=60.0)
    assert told.failure == ""
    assert told.seen["cuda"] == "13.2"
    # The second GPU does not tell its BAR1.
    assert Node(Host(tmp_path), nvml=told).gpus == (
        Gpu("NVIDIA H100", "0000:8b:00.0", 80, 128, 100),
        Gpu("NVIDIA H100", "0000:8b:00.0", 80, 0, 0),
    )


def test_nvml_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_nvml(tmp_path, init=9)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert ask_nvml(timeout_s=60.0).seen == {"error": "nvmlInit_v2 returned 9"}


def test_packages_are_read_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("torch", "2.99"), ("kvikio_cu13", "26.10.0"), ("nvidia_cufile", "1.16")):
        place = tmp_path / f"{name}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("cuda: Optional[str] = '13.0'\nhip = None\n")
    (tmp_path / "nvidia_cufile-1.16.dist-info/RECORD").write_text("nvidia/lib/libcufile.so.0,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = find_node(ask=False).packages
    assert packages["torch"] == "2.99"
    assert packages["torch-cuda"] == "13.0"
    assert packages["kvikio-cu13"] == "26.10.0"
    assert packages["libcufile"] == str(tmp_path / "nvidia/lib")


def test_a_health_log_has_its_figures() -> None:
    log = bytes([0x04, 0, 0, 90, 10, 104]) + bytes(506)
    assert parse(log) == {"warning": 4, "spare": 90, "threshold": 10, "used": 104}


def test_a_drive_that_cannot_be_asked_is_told() -> None:
    seen = ask_smart(["no-such"], timeout_s=60.0).seen
    assert seen == {"no-such": {"error": "No such file or directory"}}
    assert _read("/dev/null") == {"error": "Inappropriate ioctl for device"}
