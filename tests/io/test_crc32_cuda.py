"""The CUDA source computes zlib's CRC-32 for every length and alignment.

Method: the same file is compiled as C++, where a loop takes the place of the threads; the memory
around the message is filled with ones, so that a byte too many shows.
"""

from __future__ import annotations

import ctypes
import random
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_gds.io.checksum import crc32_of_zeros
from tests.io.hostkernels import SPAN, HostKernels

Crc = Callable[..., int]


@pytest.fixture(scope="module")
def crc(tmp_path_factory: pytest.TempPathFactory) -> Crc:
    kernels = HostKernels(tmp_path_factory.mktemp("crc32"))

    def of(data: bytes, *, shift: int, extra_blocks: int = 0) -> int:
        memory = ctypes.create_string_buffer(b"\xff" * (shift + 64) + data + b"\xff" * 64)
        base = -ctypes.addressof(memory) % 64
        start = ctypes.addressof(memory) + base + shift
        ctypes.memmove(start, data, len(data))
        blocks = (len(data) + 3 + SPAN - 1) // SPAN + extra_blocks
        raw = kernels.raw(start, length=len(data), blocks=blocks)
        return raw ^ crc32_of_zeros(len(data))

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
