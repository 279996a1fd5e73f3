"""The CUDA source compiles for the GPUs that it is meant for.

Method: NVRTC, the compiler that runs on a GPU node too, needs no GPU to compile.
"""

from __future__ import annotations

import ctypes
import sysconfig
from pathlib import Path

import pytest

import dcp_gds.io

SOURCE = Path(dcp_gds.io.__file__).with_name("crc32.cu")
PACKAGES = Path(sysconfig.get_path("purelib"))
KERNELS = (b"crc32_setup", b"crc32_raw")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_both_kernels(architecture: str) -> None:
    found = sorted(PACKAGES.glob("nvidia/*/lib/libnvrtc.so.*"))
    assert found, "nvidia-cuda-nvrtc is not installed: the Makefile does it"
    nvrtc = ctypes.CDLL(str(found[0]))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = SOURCE.read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"crc32.cu", 0, None, None) == 0
    try:
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
        result = nvrtc.nvrtcCompileProgram(program, 1, options)
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        assert (result, log.value) == (0, b"")
        assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
        code = ctypes.create_string_buffer(size.value)
        assert nvrtc.nvrtcGetCUBIN(program, code) == 0
        assert all(name in code.raw for name in KERNELS)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
