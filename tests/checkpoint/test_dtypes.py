"""Every dtype that DCP can save comes back bit for bit, whoever saves and whoever loads.

Method: tensors of random bits, NaN payloads among them, compared as bytes; DCP's own reader runs in
a process where dcp_gds cannot be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.samples import saveable_dtypes
from tests.checkpoint.stock_reader import Archive, Loaded
from tests.checkpoint.storage import OURS, STOCK, Storage, load, save

# Rows beside columns, more than one block, and nothing that any alignment divides.
SHAPES = {"tiny": (3,), "odd": (37, 211), "block": (4, 4096)}
# What torch 2.9 and later save; a dtype that leaves this list is a change worth knowing.
EXPECTED = {
    "bfloat16 bool complex128 complex32 complex64 float16 float32 float4_e2m1fn_x2 float64",
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu",
    "int16 int32 int64 int8 uint16 uint32 uint64 uint8",
}
# Quiet and signalling NaNs with payloads, and the negative zero.
BIT_PATTERNS = {
    torch.float16: (torch.int16, [0x7C01, 0x7E55, -0x3FF, -0x1, -0x8000]),
    torch.bfloat16: (torch.int16, [0x7F81, 0x7FC5, -0x7F, -0x1, -0x8000]),
    torch.float32: (torch.int32, [0x7F800001, 0x7FC12345, -0x7FFFFF, -0x1, -0x80000000]),
    torch.float64: (torch.int64, [0x7FF0000000000001, 0x7FF8123456789ABC, -0x1, -(1 << 63)]),
    torch.complex64: (torch.int32, [0x7F800001, 0x7FC12345, -0x7FFFFF, -0x80000000]),
}


def test_the_dtypes_are_those_of_dcp() -> None:
    names = {str(dtype).removeprefix("torch.") for dtype in saveable_dtypes()}
    assert names >= {name for line in EXPECTED for name in line.split()}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", saveable_dtypes(), ids=str)
def test_ours_to_stock(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    tmp_path: Path,
    stock_load: Callable[[Path], dict[str, object]],
) -> None:
    source = dense_tensor(shape, dtype)
    save({"x": source}, tmp_path)
    assert stock_load(tmp_path) == {"x": Loaded(str(dtype), shape, raw(source))}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("saver", [STOCK, OURS], ids=lambda storage: f"{storage.name}-ours")
@pytest.mark.parametrize("dtype", saveable_dtypes(), ids=str)
def test_to_ours(
    dtype: torch.dtype, saver: Storage, shape: tuple[int, ...], tmp_path: Path
) -> None:
    source, target = dense_tensor(shape, dtype), filled_tensor(shape, dtype)
    save({"x": source}, tmp_path, saver)
    load({"x": target}, tmp_path)
    assert raw(target) == raw(source)


def test_all_dtypes_in_one_checkpoint(
    tmp_path: Path, stock_load: Callable[[Path], dict[str, object]]
) -> None:
    state = {str(dtype): dense_tensor((5, 7), dtype) for dtype in saveable_dtypes()}
    save(dict(state), tmp_path)
    assert stock_load(tmp_path) == {
        name: Loaded(name, (5, 7), raw(tensor)) for name, tensor in state.items()
    }


@pytest.mark.parametrize("dtype", BIT_PATTERNS, ids=str)
def test_nan_payloads(
    dtype: torch.dtype, tmp_path: Path, stock_load: Callable[[Path], dict[str, object]]
) -> None:
    integer, patterns = BIT_PATTERNS[dtype]
    source = torch.tensor(patterns, dtype=integer).view(dtype)
    target = torch.zeros_like(source)
    save({"x": source}, tmp_path)
    load({"x": target}, tmp_path)
    expected = torch.tensor(patterns, dtype=integer).view(torch.uint8).numpy().tobytes()
    assert raw(target) == expected
    assert stock_load(tmp_path) == {"x": Loaded(str(dtype), tuple(source.shape), expected)}


@pytest.mark.parametrize("dtype", saveable_dtypes(), ids=str)
def test_the_archive_is_the_one_dcp_writes(
    dtype: torch.dtype, tmp_path: Path, stock_archives: Callable[[Path], dict[object, Archive]]
) -> None:
    state = {"x": dense_tensor((6, 5), dtype), "y": dense_tensor((), dtype)}
    save(dict(state), tmp_path / "ours")
    save(dict(state), tmp_path / "stock", STOCK)
    assert stock_archives(tmp_path / "ours") == stock_archives(tmp_path / "stock")
