"""Packed pieces are a tensor's bytes in row-major order: compared with torch's contiguous()."""

from __future__ import annotations

import ctypes

import pytest
import torch

from dcp_gds.checkpoint.packing import packed_pieces

BASE = torch.arange(4 * 6 * 10, dtype=torch.float32).reshape(4, 6, 10)
COMPLEX = torch.randn(6, 5, dtype=torch.complex64)
TENSORS = {
    "contiguous": BASE,
    "permuted": BASE.permute(2, 0, 1),
    "strided": BASE[::2, 1::2, ::3],
    "expanded": BASE[:, :1, :].expand(4, 9, 10),
    "overlapping": torch.as_strided(BASE.reshape(-1), (5, 7), (2, 3)),
    "scalar": torch.tensor(7.0),
    "conjugate": COMPLEX.conj(),
    "negative": torch._neg_view(BASE),
    "imaginary part of a conjugate": COMPLEX.conj().imag,
    "float8": BASE.to(torch.float8_e5m2)[:, ::2],
    "complex128": torch.randn(4, 4, dtype=torch.complex128).t(),
    "bool": (BASE > 50).transpose(0, 1),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("bytes_max", [16, 40, 100, 1 << 20])
def test_pieces_are_the_contiguous_bytes(name: str, bytes_max: int) -> None:
    tensor = TENSORS[name]
    packed = bytearray()
    for piece in packed_pieces(tensor, bytes_max=bytes_max):
        assert piece.is_contiguous()
        assert not piece.is_conj()
        assert not piece.is_neg()
        assert piece.nbytes <= bytes_max
        packed += ctypes.string_at(piece.data_ptr(), piece.nbytes)
    expected = tensor.resolve_conj().resolve_neg().contiguous()
    assert packed == bytes(expected.reshape(-1).view(torch.uint8).numpy())
