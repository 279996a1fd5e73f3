"""The CUDA source computes zlib's CRC-32 for every length and alignment.

Method: the same file is compiled as C++, where a loop takes the place of the threads; the memory
around the message is filled with ones, so that a byte too many shows.
"""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp_gds.io
from dcp_gds.io.checksum import crc32_of_zeros

SOURCE = Path(dcp_gds.io.__file__).with_name("crc32.cu")
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
extern "C" void set_up() {
    for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) crc32_setup(&tables);
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

Crc = Callable[..., int]


@pytest.fixture(scope="module")
def crc(tmp_path_factory: pytest.TempPathFactory) -> Crc:
    directory = tmp_path_factory.mktemp("crc32")
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
    loaded = ctypes.CDLL(str(library))
    loaded.raw.restype = ctypes.c_uint
    loaded.raw.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_uint]
    loaded.set_up()

    def of(data: bytes, *, shift: int, extra_blocks: int = 0) -> int:
        memory = ctypes.create_string_buffer(b"\xff" * (shift + 64) + data + b"\xff" * 64)
        base = -ctypes.addressof(memory) % 64
        start = ctypes.addressof(memory) + base + shift
        ctypes.memmove(start, data, len(data))
        blocks = (len(data) + 3 + SPAN - 1) // SPAN + extra_blocks
        return int(loaded.raw(start, len(data), blocks)) ^ crc32_of_zeros(len(data))

    return of


def test_every_short_length_at_every_alignment(crc: Crc) -> None:
    data = random.Random(1).randbytes(80)
    for shift in range(8):
        for length in range(len(data)):
            assert crc(data[:length], shift=shift) == zlib.crc32(data[:length]), (shift, length)


@pytest.mark.parametrize("around", [1024, SPAN, 3 * SPAN])
def test_lengths_around_rows_and_spans(crc: Crc, around: int) -> None:
    data = random.Random(around).randbytes(around + 8)
    for length in range(around - 5, around + 6):
        for shift in range(4):
            assert crc(data[:length], shift=shift) == zlib.crc32(data[:length]), (shift, length)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 1000),
    length=st.integers(0, 5 * SPAN),
    shift=st.integers(0, 15),
    extra_blocks=st.integers(0, 3),
)
def test_any_length_with_blocks_to_spare(
    crc: Crc, seed: int, length: int, shift: int, extra_blocks: int
) -> None:
    data = random.Random(seed).randbytes(length)
    assert crc(data, shift=shift, extra_blocks=extra_blocks) == zlib.crc32(data)
