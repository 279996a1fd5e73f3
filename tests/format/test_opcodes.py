"""A broken pickle is refused before it is run: each kind of damage, bombs, frames, and garbage."""

from __future__ import annotations

import pickle
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.unpickler import unpickle
from tests.format.picklecode import REDUCE, TUPLE1, named, program

PATH = "/ckpt/.metadata"


def load(data: bytes) -> object:
    return unpickle(data, path=PATH, allow=frozenset())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04",
        b"\x80\x03N.",
        b"\x80\x06N.",
        b"cos\nsystem\n(S'true'\ntR.",
        program(b"cos\nsystem\n"),
        program(b"(ios\nsystem\n"),
        program(b"(" + named("os", "system") + b"o"),
        program(b"\x82\x01"),
        program(b"\x83\x01\x00"),
        program(b"\x84\x01\x00\x00\x00"),
        program(b"Pid\n"),
        program(b"NQ"),
        program(b"I1\n"),
        program(b"N2\x86"),
        program(b"NN0"),
        program(b"N\x97"),
        program(b"N\x98"),
        program(b"Np1\n"),
        program(b"Nq\x01"),
        program(b"Nr\x01\x00\x00\x00"),
        program(b"\x80\x04N"),
        program(b"N") + b".",
        program(b"N")[:-1],
        program(b""),
        program(b"h\x00"),
        program(b"K"),
        program(b"\x85"),
        program(b"NNa"),
        program(b"\x8c\x02\xff\xff"),
        program(b"}]Ns"),
    ],
)
def test_a_broken_pickle_or_an_instruction_that_dcp_never_writes_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        load(data)
    assert caught.value.path == PATH
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "data",
    [
        # A memo of 256 MiB, which Python clears at once: more might end the machine, not the test.
        program(b"Nr\xff\xff\xff\x00"),
        program(b"Np16777215\n"),
        program(b"\x8b\xff\xff\xff\x7f"),
        program(b"X\xff\xff\xff\xff"),
        program(b"B\xff\xff\xff\xff"),
        program(b"\x8d" + struct.pack("<Q", 2**62)),
        program(b"\x8e" + struct.pack("<Q", 2**62)),
        program(b"\x96" + struct.pack("<Q", 2**28)),
        program(b"\x96" + struct.pack("<Q", 2**64 - 1)),
        program(b"\x95" + struct.pack("<Q", 2**28)),
        program(named("builtins", "bytearray"), b"\x8a\x06" + bytes(5) + b"\1", TUPLE1, REDUCE),
        program(
            named("torch", "Size"),
            named("builtins", "range"),
            b"J\x00\x00\x40\x00",
            TUPLE1 + REDUCE + TUPLE1 + REDUCE,
        ),
        program(named("torch", "Size"), b"(" + b"K\1" * 257 + b"t", TUPLE1, REDUCE),
    ],
)
def test_a_bomb_allocates_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((CorruptCheckpointError, UnsupportedError)):
            load(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x95" + struct.pack("<Q", 1) + b"K\x01.",  # an instruction straddles the end
        b"\x80\x04\x95" + struct.pack("<Q", 11) + b"\x95" + struct.pack("<Q", 2) + b"N.",
        b"\x80\x04\x95" + struct.pack("<Q", 3) + b"N.",
        b"\x80\x04\x95" + struct.pack("<Q", 1) + b"N",
        b"\x80\x04\x95\x01",
        b"\x80\x04\x95" + struct.pack("<Q", 6) + b"X\x02\0\0\0aa.",
    ],
)
def test_a_frame_holds_whole_instructions(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        load(data)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, -1, 255, 256, 65536, 2**31, 2**70, -(2**3000), 1.5, True, False],
        "x" * 255 + "é" * 255,
        ["y" * 70_000, b"z" * 300, b"z" * 70_000, b"", ""],
        {(): [()], ("a", 1): {"b": (1, 2, 3, 4)}, 1: {2, 3}, 2: frozenset({4})},
        [complex(1, 2), range(3), slice(1, 2, None)],
        [str(number) for number in range(50_000)],
    ],
)
@pytest.mark.parametrize("protocol", [4, 5])
def test_plain_values_come_back(value: object, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("dimensions", [0, 70, 256])
def test_a_size_of_many_dimensions_comes_back(dimensions: int) -> None:
    size = torch.Size([1] * dimensions)
    assert load(pickle.dumps(size)) == size


def test_a_bytearray_of_protocol_5_comes_back() -> None:
    assert load(pickle.dumps(bytearray(b"abc"), protocol=5)) == bytearray(b"abc")


@pytest.mark.parametrize("wrap", [b"]", b"}"])
def test_deep_nesting_is_no_recursion(wrap: bytes) -> None:
    depth = 20_000
    append = b"a" if wrap == b"]" else b"s"
    key = b"" if wrap == b"]" else b"K\1"
    value = load(program((wrap + key) * depth, b"N", append * depth))
    for _ in range(depth):
        value = value[-1] if isinstance(value, list) else value[1]  # type: ignore[index]  # object
    assert value is None
    assert isinstance(load(program(b")" + TUPLE1 * depth)), tuple)


@given(st.binary(max_size=200))
def test_garbage_loads_or_is_refused(data: bytes) -> None:
    for candidate in (data, program(data), b"\x80\x05" + data):
        try:
            load(candidate)
        except (CorruptCheckpointError, UnsupportedError):
            continue
