"""Checksum: each way to compute the CRC-32 equals zlib, continued and combined too.

Method: hypothesis for lengths, addresses, values and cuts, around the steps of each kind; zlib is
the oracle.
"""

from __future__ import annotations

import ctypes
import random
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp_gds import _core
from dcp_gds.io.checksum import crc32_combine, crc32_of, crc32_of_bytes, crc32_of_zeros

KINDS = _core.crc32_kinds()
# Above 64 KiB the interpreter lock is released, 256 bytes are the longest step.
LENGTH_MAX = 70_000
DATA = random.Random(0).randbytes(LENGTH_MAX + 64)
MEMORY = ctypes.create_string_buffer(DATA, len(DATA))
ADDRESS = ctypes.addressof(MEMORY)

lengths = st.one_of(st.integers(0, 1100), st.integers(0, LENGTH_MAX))
values = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("kind", KINDS)
@given(start=st.integers(0, 64), length=lengths, value=values)
@example(start=0, length=65535, value=0)
@example(start=1, length=65536, value=1)
def test_every_kind_equals_zlib(kind: str, start: int, length: int, value: int) -> None:
    expected = zlib.crc32(DATA[start : start + length], value)
    assert _core.crc32(ADDRESS + start, length=length, value=value, kind=kind) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_length_around_the_steps_equals_zlib(kind: str) -> None:
    for length in range(1100):
        expected = zlib.crc32(DATA[:length])
        assert _core.crc32(ADDRESS, length=length, kind=kind) == expected, length


@given(start=st.integers(0, 64), length=lengths, value=values)
def test_memory_and_bytes_equal_zlib(start: int, length: int, value: int) -> None:
    part = DATA[start : start + length]
    assert crc32_of(ADDRESS + start, length=length) == zlib.crc32(part)
    assert crc32_of(ADDRESS + start, length=length, value=value) == zlib.crc32(part, value)
    assert crc32_of_bytes(memoryview(part)) == zlib.crc32(part)


@given(length=lengths, cut=st.floats(0, 1))
def test_two_parts_combine_to_the_whole(length: int, cut: float) -> None:
    middle = int(length * cut)
    first, second = DATA[:middle], DATA[middle:length]
    combined = crc32_combine(zlib.crc32(first), zlib.crc32(second), second_length=len(second))
    assert combined == zlib.crc32(DATA[:length])


@given(
    crcs=st.lists(values, min_size=3, max_size=3),
    lengths=st.lists(st.integers(0, 2**61), min_size=2, max_size=2),
)
def test_combination_is_associative_for_lengths_that_no_memory_has(
    crcs: list[int], lengths: list[int]
) -> None:
    first, second, third = crcs
    left = crc32_combine(
        crc32_combine(first, second, second_length=lengths[0]), third, second_length=lengths[1]
    )
    right = crc32_combine(
        first, crc32_combine(second, third, second_length=lengths[1]), second_length=sum(lengths)
    )
    assert left == right


def test_the_kind_in_use_is_the_first_and_portable_is_always_there() -> None:
    assert _core.crc32_kind() == KINDS[0]
    assert KINDS[-1] == "portable"
    assert set(KINDS) <= {"vpclmul", "pclmul", "pmull", "portable"}
    assert len(set(KINDS)) == len(KINDS)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'sse9' does not run on this CPU"):
        _core.crc32(ADDRESS, length=1, kind="sse9")


@pytest.mark.parametrize("length", [0, 1, 2, 3, 64, 1000, 4095, 65_536, 1_000_003])
def test_the_checksum_of_zeros(length: int) -> None:
    assert crc32_of_zeros(length) == zlib.crc32(bytes(length))
