"""What went through stream extensions is checked too: tried with none, so that none is needed."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.streamitem import load_streamed
from dcp_gds.errors import ConfigError, CorruptCheckpointError, UnsupportedError
from dcp_gds.format.extent import Extent


class Planner:
    """Notes the bytes it gets and gives one target."""

    def __init__(self) -> None:
        self.target = torch.zeros(3)
        self.loaded: list[bytes] = []

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.loaded.append(value.getvalue())

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.target

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        assert tensor.data_ptr() == self.target.data_ptr()


def stream(kind: LoadItemType, content: bytes, planner: Planner, **options: Any) -> None:
    index, size = MetadataIndex("w"), torch.Size([3])
    read_item = ReadItem(kind, index, torch.Size([0]), index, torch.Size([0]), size)
    extent = Extent(0, len(content))
    item = LoadItem(read_item, extent, extent, None, None, None, options.pop("descriptors", ()))
    settings: dict[str, Any] = {"strict_dtype": False, "check_bytes": lambda fqn, data: None}
    load_streamed(item, io.BytesIO(content), cast(Any, planner), **(settings | options))


def archive(tensor: torch.Tensor) -> bytes:
    content = io.BytesIO()
    torch.save(tensor, content)
    return content.getvalue()


def test_bytes_are_checked_before_the_planner_gets_them() -> None:
    def refuse(fqn: str, data: io.BytesIO) -> None:
        raise UnsupportedError(f"{fqn}: {data.getvalue()!r}")

    planner = Planner()
    with pytest.raises(UnsupportedError, match="w: b'hostile'"):
        stream(LoadItemType.BYTE_IO, b"hostile", planner, check_bytes=refuse)
    assert planner.loaded == []
    stream(LoadItemType.BYTE_IO, b"harmless", planner)
    assert planner.loaded == [b"harmless"]


def test_another_dtype_is_said() -> None:
    planner = Planner()
    content = archive(torch.ones(3, dtype=torch.float64))
    with pytest.raises(ConfigError, match=r"w: the checkpoint holds torch.float64"):
        stream(LoadItemType.TENSOR, content, planner, strict_dtype=True)
    assert torch.equal(planner.target, torch.zeros(3))
    with pytest.warns(UserWarning, match="values are converted"):
        stream(LoadItemType.TENSOR, content, planner)
    assert torch.equal(planner.target, torch.ones(3))


def test_what_is_no_archive_is_refused() -> None:
    with pytest.raises(CorruptCheckpointError, match=r"w: torch.load refuses it"):
        stream(LoadItemType.TENSOR, b"garbage", Planner())


def test_an_unknown_extension_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"w: Unknown extension name='none'"):
        stream(LoadItemType.TENSOR, b"", Planner(), descriptors=("none/1",))
