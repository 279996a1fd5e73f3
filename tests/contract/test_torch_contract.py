"""torch serializes tensors, and tells where their bytes are, as dcp_gds relies on.

Method: each name and behaviour of torch outside DCP that the plugin uses, with the smallest tensor
that shows it.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.serialization import get_crc32_options, set_crc32_options, skip_data
from torch.utils.serialization import config

LENGTH = 1000


class Recorder(io.RawIOBase):
    """Counts what is written and what is skipped."""

    def __init__(self) -> None:
        self.position = 0
        self.written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self.position = offset + (self.position if whence == io.SEEK_CUR else 0)
        return self.position

    def write(self, data: Any, /) -> int:
        self.position += len(data)
        self.written += len(data)
        return len(data)


def archive_of(tensor: torch.Tensor) -> bytes:
    stream = io.BytesIO()
    torch.save(tensor, stream)
    return stream.getvalue()


def test_skip_data_writes_all_but_the_payload() -> None:
    recorder: Any = Recorder()
    with FakeTensorMode():
        fake = torch.empty(LENGTH, dtype=torch.uint8)
    with skip_data(materialize_fake_tensors=True):
        torch.save(fake, recorder)
    real = archive_of(torch.zeros(LENGTH, dtype=torch.uint8))
    assert recorder.position == len(real)
    assert recorder.written == len(real) - LENGTH


def test_a_fake_load_tells_where_the_bytes_are() -> None:
    tensor = torch.arange(LENGTH, dtype=torch.int16)[3:].view(-1, 1).t()
    data = archive_of(tensor)
    with FakeTensorMode():
        fake = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    storage: Any = fake.untyped_storage()
    offset = storage._checkpoint_offset
    assert data[offset : offset + storage.nbytes()] == bytes(tensor.untyped_storage())
    assert (fake.stride(), fake.storage_offset()) == (tensor.stride(), 3)
    assert fake.dtype is torch.int16


@pytest.mark.parametrize("view", [torch.Tensor.conj, torch._neg_view], ids=["conj", "neg"])
def test_a_fake_load_keeps_lazy_views(view: Any) -> None:
    data = archive_of(view(torch.zeros(3, dtype=torch.complex64)))
    with FakeTensorMode():
        fake = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    assert (fake.is_conj(), fake.is_neg()) == (view is torch.Tensor.conj, view is torch._neg_view)


def test_an_archive_holds_the_crc_of_its_payload() -> None:
    data = archive_of(torch.arange(LENGTH))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (entry,) = (info for info in archive.infolist() if info.filename.endswith("/data/0"))
        assert archive.testzip() is None
    assert entry.compress_type == zipfile.ZIP_STORED
    assert entry.CRC != 0


def test_checksums_and_alignment_are_options_of_torch() -> None:
    assert get_crc32_options() is True
    assert config.save.storage_alignment == 64
    set_crc32_options(False)
    try:
        data = archive_of(torch.arange(LENGTH))
    finally:
        set_crc32_options(True)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {info.CRC for info in archive.infolist()} == {0}


def test_a_weak_reference_tells_that_a_storage_is_gone() -> None:
    tensor = torch.zeros(LENGTH)
    alias = tensor.view(-1)
    reference: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch has no types here
    del tensor
    assert not reference.expired()
    del alias
    assert reference.expired()
