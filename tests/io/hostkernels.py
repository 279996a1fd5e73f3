"""Host kernels: crc32.cu compiled as C++, where loops take the place of the GPU's threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import dcp_gds.io

__all__ = ["SOURCE", "SPAN", "HostKernels"]

SOURCE = Path(dcp_gds.io.__file__).with_name("crc32.cu")
# What a block covers.
SPAN = 64 * 1024
# The two kernels need threads; their parts do not, and here run one after the other.
HARNESS = """
#define __device__
#define __global__
#define __shared__ static
#define __syncthreads()
#define atomicXor(where, value) (*(where) ^= (value))
static struct { unsigned x; } threadIdx, blockIdx;
#include "%s"
static Crc32Tables tables;
extern "C" unsigned set_up() {
    for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) crc32_setup(&tables);
    return sizeof tables;
}
extern "C" unsigned raw(const unsigned char* data, unsigned long long length, unsigned blocks) {
    unsigned result = 0;
    for (unsigned block = 0; block < blocks; ++block) {
        unsigned total = 0;
        for (unsigned thread = 0; thread < THREADS; ++thread)
            total ^= sum_of(data, data + length, block, thread, tables.row, tables.lane);
        result ^= finished(data, data + length, block, total, tables.power);
    }
    return result;
}
"""


class HostKernels:
    """The kernels, compiled in `directory`, with their tables set up."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("c++") or shutil.which("g++")
        assert compiler, "the tests need a C++ compiler"
        (directory / "harness.cpp").write_text(HARNESS % SOURCE)
        library = directory / "crc32.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-Wall", "-Wextra"]
        done = subprocess.run(
            [*command, "-Werror", "-o", str(library), str(directory / "harness.cpp")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(str(library))
        self._library.raw.restype = ctypes.c_uint
        self._library.raw.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_uint]
        self.table_bytes = int(self._library.set_up())

    def raw(self, address: int, *, length: int, blocks: int) -> int:
        """What crc32_raw adds into its result."""
        return int(self._library.raw(address, length, blocks))
