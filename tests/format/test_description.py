"""A description that could ask for any amount of memory is refused, one of torch.save is not.

Method: pickles of torch.save, and pickles written by hand that name what grows.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.description import check_description_pickle

START = b"\x80\x02"


def description_of(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, 4).t(),
        lambda: torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        lambda: torch.ones(4).to(torch.float8_e4m3fn),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, dtype=torch.uint16),
    ],
)
def test_descriptions_of_tensors_pass(make: Callable[[], torch.Tensor]) -> None:
    check_description_pickle(description_of(make()))


@pytest.mark.parametrize(
    "pickled",
    [
        START + b"cbuiltins\nbytearray\n\x8a\x05\0\0\0\0\2\x85R.",
        START + b"c__builtin__\nbytearray\n\x8a\x05\0\0\0\0\2\x85R.",
        START + b"(i__builtin__\nbytearray\n.",
        START + b"c_codecs\nencode\nX\1\0\0\0xX\3\0\0\0hex\x86R.",
        START + b"X\10\0\0\0builtinsX\11\0\0\0bytearray\x93.",
    ],
)
def test_what_grows_is_refused(pickled: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match="any amount of memory"):
        check_description_pickle(pickled)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_another_protocol_is_refused(protocol: int) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"protocol {protocol}, torch.save writes 2"):
        check_description_pickle(pickle.dumps(1, protocol=protocol))


@pytest.mark.parametrize("pickled", [b"", b"\xff.", START + b"X\xff\xff\xff\x7fabc.", START + b"N"])
def test_what_is_broken_is_refused(pickled: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match="is broken"):
        check_description_pickle(pickled)


@given(st.binary(max_size=200))
def test_garbage_passes_or_is_refused(data: bytes) -> None:
    for candidate in (data, START + data):
        try:
            check_description_pickle(candidate)
        except CorruptCheckpointError:
            continue
