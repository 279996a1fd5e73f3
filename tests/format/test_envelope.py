"""An envelope is what torch.save writes: each is compared with a real archive, byte by byte."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

import pytest
import torch

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.archive import read_stored_tensor
from dcp_gds.format.envelope import EnvelopeCache, TensorForm
from dcp_gds.format.zipdirectory import local_header_length, read_directory

TENSORS = {
    "float32": torch.arange(1000, dtype=torch.float32),
    "bfloat16": torch.arange(77, dtype=torch.bfloat16),
    "bool": torch.tensor([True, False, True]),
    "complex64": torch.randn(5, 3, dtype=torch.complex64),
    "uint16": torch.arange(9).to(torch.uint16),
    "float8": torch.arange(9).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0),
    "empty rows": torch.empty(0, 5),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "many dimensions": torch.zeros((1,) * 20),
}


@pytest.fixture(params=TENSORS)
def tensor(request: pytest.FixtureRequest) -> torch.Tensor:
    return TENSORS[request.param]


def form_of(tensor: torch.Tensor) -> TensorForm:
    return TensorForm(tensor.dtype, tuple(tensor.size()), tensor.stride())


def payload_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy()) if tensor.numel() else b""


def saved(tensor: torch.Tensor) -> bytes:
    archive = io.BytesIO()
    torch.save(tensor, archive)
    return archive.getvalue()


def enveloped(tensor: torch.Tensor, *, checksum: bool = True) -> bytes:
    envelope = EnvelopeCache(checksum=checksum).get(form_of(tensor))
    payload = payload_of(tensor)
    return envelope.head + payload + envelope.tail_with(zlib.crc32(payload))


def without_serialization_id(archive: bytes) -> bytes:
    """The id is a hash of records that skip_data has not seen; blank it and its checksums."""
    blank = bytearray(archive)
    for entry in read_directory(archive, tail_offset=0):
        if entry.name.endswith("serialization_id"):
            data = entry.header_offset + local_header_length(archive[entry.header_offset :])
            blank[data : data + entry.length] = bytes(entry.length)
            descriptor = data + entry.length + 4
            blank[descriptor : descriptor + 4] = bytes(4)
            blank[entry.crc32_position : entry.crc32_position + 4] = bytes(4)
    return bytes(blank)


def test_equals_what_torch_saves(tensor: torch.Tensor) -> None:
    assert without_serialization_id(enveloped(tensor)) == without_serialization_id(saved(tensor))


def test_torch_loads_it(tensor: torch.Tensor) -> None:
    loaded = torch.load(io.BytesIO(enveloped(tensor)), weights_only=True)
    assert loaded.dtype == tensor.dtype
    assert loaded.stride() == tensor.stride()
    assert payload_of(loaded) == payload_of(tensor)


def test_zip_tools_check_the_payload(tensor: torch.Tensor) -> None:
    archive = bytearray(enveloped(tensor))
    assert zipfile.ZipFile(io.BytesIO(archive)).testzip() is None
    if tensor.numel():
        head = len(EnvelopeCache(checksum=True).get(form_of(tensor)).head)
        archive[head] ^= 1
        assert zipfile.ZipFile(io.BytesIO(archive)).testzip() == "archive/data/0"


def test_without_checksums_all_are_zero(tensor: torch.Tensor) -> None:
    archive = enveloped(tensor, checksum=False)
    infos = zipfile.ZipFile(io.BytesIO(archive)).infolist()
    assert {info.CRC for info in infos} == {0}
    torch.serialization.set_crc32_options(False)
    try:
        assert len(saved(tensor)) == len(archive)
    finally:
        torch.serialization.set_crc32_options(True)


def test_the_envelope_of_five_gibibytes_uses_zip64() -> None:
    form = TensorForm.contiguous(torch.uint8, (5 << 30,))
    envelope = EnvelopeCache(checksum=True).get(form)
    tail_offset = len(envelope.head) + form.length
    entries = read_directory(envelope.tail_with(0xDEADBEEF), tail_offset=tail_offset)
    (payload,) = (entry for entry in entries if entry.name.endswith("data/0"))
    assert (payload.length, payload.crc32) == (5 << 30, 0xDEADBEEF)


def test_an_archive_is_understood_without_its_payload(tensor: torch.Tensor) -> None:
    archive = saved(tensor)
    stored = read_stored_tensor(io.BytesIO(archive), archive_length=len(archive))
    payload = archive[stored.storage.offset : stored.storage.end]
    assert payload == payload_of(tensor)
    assert (stored.dtype, stored.size) == (tensor.dtype, tuple(tensor.size()))
    assert stored.stride == tensor.stride()
    assert (stored.conj, stored.neg, stored.first) == (False, False, 0)


def test_a_lazily_conjugate_archive_says_so() -> None:
    archive = saved(torch.randn(3, dtype=torch.complex64).conj())
    stored = read_stored_tensor(io.BytesIO(archive), archive_length=len(archive))
    assert stored.conj
    assert not stored.neg


@pytest.mark.parametrize(
    "content", [b"", b"garbage", saved(torch.ones(3))[:-1], saved(torch.ones(3))[:700]]
)
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        read_stored_tensor(io.BytesIO(content), archive_length=len(content))


def test_an_archive_of_something_else_is_refused() -> None:
    archive = io.BytesIO()
    torch.save({"a": 1}, archive)
    archive.seek(0)
    with pytest.raises(CorruptCheckpointError, match="dict"):
        read_stored_tensor(archive, archive_length=len(archive.getvalue()))


def test_a_storage_beyond_the_item_is_refused() -> None:
    archive = saved(torch.ones(1000))
    with pytest.raises(CorruptCheckpointError, match="storage lies at"):
        read_stored_tensor(io.BytesIO(archive), archive_length=2000)


def test_a_dtype_that_torch_cannot_save_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="uint3"):
        EnvelopeCache(checksum=True).get(TensorForm.contiguous(vars(torch)["uint3"], (4,)))


@pytest.mark.parametrize("cut", [1, 10, 22, 60, 100, 400])
def test_a_cut_directory_is_refused(cut: int) -> None:
    archive = saved(torch.ones(3))
    with pytest.raises(CorruptCheckpointError):
        read_directory(archive[:-cut], tail_offset=0)


def test_a_directory_in_front_of_the_tail_is_refused() -> None:
    archive = saved(torch.ones(3))
    with pytest.raises(CorruptCheckpointError, match="front"):
        read_directory(archive[-450:], tail_offset=len(archive) - 450)


def test_changed_torch_options_are_noticed() -> None:
    cache = EnvelopeCache(checksum=True)
    cache.renew()
    form = TensorForm.contiguous(torch.float32, (10,))
    before = cache.get(form)
    config: Any = torch.utils.serialization.config
    with config.patch({"save.storage_alignment": 4096}):
        cache.renew()
        assert len(cache.get(form).head) % 4096 == 0
    cache.renew()
    assert cache.get(form) == before
