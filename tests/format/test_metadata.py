"""Metadata of stock DCP load, ours load in stock DCP, and what is neither is refused."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.metadata import (
    ShardFileRecord,
    dump_metadata,
    load_metadata,
    split_metadata,
)
from tests.ranks import EXPECTED_WARNINGS, run_on_ranks

pytestmark = [pytest.mark.filterwarnings(f"ignore:{message}") for message in EXPECTED_WARNINGS]

PATH = "/ckpt/.metadata"
TOKEN = "0f" * 16
RECORDS = (ShardFileRecord("__0_0.distcp", 5000, 7),)
DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)
STATE = {
    "model": {
        "layers": [{"weight": torch.ones(3, 4)}, {"weight": torch.ones(2, dtype=torch.bfloat16)}],
        "scale": torch.tensor(1.5),
        "empty": torch.ones(0, 5, dtype=torch.int8),
        "image": torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "complex": torch.ones(2, dtype=torch.complex64),
        "fp8": torch.ones(4).to(torch.float8_e4m3fn),
        "flag": torch.ones(2, requires_grad=True),
    },
    "optimizer": OrderedDict(state={0: {"step": 3, "exp_avg": torch.ones(4)}}, lr=0.1),
    "name": "größe",
    "path": Path("/data"),
    7: {"key that is no string": {1, 2}},
}


def tensor_entry(dtype: torch.dtype = torch.float32) -> TensorStorageMetadata:
    chunk = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 3]))
    return TensorStorageMetadata(TensorProperties(dtype), torch.Size([2, 3]), [chunk])


def sample() -> Metadata:
    """Return the metadata of a tensor and a byte item."""
    return Metadata(
        state_dict_metadata={"w": tensor_entry(), "b": BytesStorageMetadata()},
        planner_data={"w": ("w",), "b": ("b",)},
        storage_data={
            MetadataIndex("w", torch.Size([0, 0]), 0): _StorageInfo("__0_0.distcp", 0, 1200),
            MetadataIndex("b"): _StorageInfo("__0_0.distcp", 1200, 30, ["zstd"]),
        },
        storage_meta=StorageMeta(checkpoint_id=Path("/ckpt"), save_id=TOKEN),
        version="1.0.0",
    )


SAMPLE = dump_metadata(sample(), token=TOKEN, shard_files=RECORDS)
STOCK_SAMPLE = pickle.dumps(sample())


def test_metadata_of_a_stock_save_load(tmp_path: Path) -> None:
    dcp_save(STATE, storage_writer=FileSystemWriter(tmp_path, thread_count=2))
    data = (tmp_path / ".metadata").read_bytes()
    pickled, trailer = split_metadata(data, path=PATH)
    assert trailer is None
    loaded = load_metadata(pickled, path=PATH)
    assert loaded == pickle.loads(data)
    assert {"model.layers.0.weight", "optimizer.state.0.exp_avg", "name"} <= set(
        loaded.state_dict_metadata
    )
    assert loaded.storage_meta is not None
    assert loaded.storage_meta.checkpoint_id == tmp_path


def save_sharded(directory: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    full = torch.arange(15.0).reshape(5, 3)
    state = {"sharded": distribute_tensor(full, mesh, [Shard(0)]), "plain": full}
    dcp_save(state, storage_writer=FileSystemWriter(directory))


def test_metadata_of_a_stock_save_of_sharded_tensors_load(tmp_path: Path) -> None:
    run_on_ranks(2, save_sharded, tmp_path)
    data = (tmp_path / ".metadata").read_bytes()
    loaded = load_metadata(data, path=PATH)
    assert loaded == pickle.loads(data)
    entry = loaded.state_dict_metadata["sharded"]
    assert isinstance(entry, TensorStorageMetadata)
    assert [tuple(chunk.sizes) for chunk in entry.chunks] == [(3, 3), (2, 3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_loads(dtype: torch.dtype) -> None:
    metadata = dataclasses.replace(sample(), state_dict_metadata={"w": tensor_entry(dtype)})
    assert load_metadata(pickle.dumps(metadata), path=PATH) == metadata


@pytest.mark.parametrize("checkpoint_id", [None, "/ckpt", Path("/ckpt")])
@pytest.mark.parametrize("protocol", [4, 5])
def test_every_checkpoint_id_loads(checkpoint_id: str | Path | None, protocol: int) -> None:
    metadata = dataclasses.replace(sample(), storage_meta=StorageMeta(checkpoint_id=checkpoint_id))
    assert load_metadata(pickle.dumps(metadata, protocol=protocol), path=PATH) == metadata


def test_the_metadata_of_a_torch_without_later_fields_load() -> None:
    metadata = sample()
    del metadata.storage_meta, metadata.version
    loaded = load_metadata(pickle.dumps(metadata), path=PATH)
    assert (loaded.storage_meta, loaded.version) == (None, None)


def test_our_metadata_load_in_stock_dcp(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(SAMPLE)
    assert pickle.load(io.BytesIO(SAMPLE)) == sample()
    expected = FileSystemReader(tmp_path).read_metadata()
    assert expected.state_dict_metadata == sample().state_dict_metadata
    assert expected.storage_data == sample().storage_data


def test_our_metadata_come_back() -> None:
    pickled, trailer = split_metadata(SAMPLE, path=PATH)
    assert load_metadata(pickled, path=PATH) == sample()
    assert trailer is not None
    assert (trailer.token, trailer.shard_files) == (TOKEN, RECORDS)


def test_metadata_name_nothing_of_dcp_gds() -> None:
    assert b"dcp_gds" not in SAMPLE


def test_a_damaged_byte_of_our_metadata_is_found() -> None:
    data = bytearray(SAMPLE)
    for position in range(len(data)):
        data[position] ^= 0x10
        with pytest.raises(CorruptCheckpointError):
            load_metadata(split_metadata(bytes(data), path=PATH)[0], path=PATH)
        data[position] ^= 0x10


def test_metadata_that_were_cut_off_are_found() -> None:
    """All but one length: cut off exactly behind the pickle, the file is a stock file."""
    pickle_length = len(split_metadata(SAMPLE, path=PATH)[0])
    for length in set(range(len(SAMPLE))) - {pickle_length}:
        with pytest.raises(CorruptCheckpointError):
            load_metadata(split_metadata(SAMPLE[:length], path=PATH)[0], path=PATH)


@given(st.integers(0, len(STOCK_SAMPLE) - 1), st.integers(1, 255))
def test_a_damaged_byte_of_stock_metadata_is_refused_or_gives_well_formed_metadata(
    position: int, mask: int
) -> None:
    data = bytearray(STOCK_SAMPLE)
    data[position] ^= mask
    try:
        loaded = load_metadata(bytes(data), path=PATH)
    except (CorruptCheckpointError, UnsupportedError):
        return
    assert all(isinstance(index.fqn, str) for index in loaded.storage_data)
    assert all(info.offset >= 0 <= info.length for info in loaded.storage_data.values())


def set_field(*keys: str | int, value: object) -> Callable[[Metadata], None]:
    """Return a change of one field, found by attribute names and positions in dicts and lists."""

    def change(metadata: Metadata) -> None:
        owner: Any = metadata
        for key in keys[:-1]:
            owner = _get(owner, key)
        last = keys[-1]
        if isinstance(last, int):
            owner[list(owner)[last] if isinstance(owner, dict) else last] = value
        else:
            owner.__dict__[last] = value

    return change


def _get(owner: Any, key: str | int) -> Any:
    if isinstance(key, str):
        return getattr(owner, key)
    return list(owner.values())[key] if isinstance(owner, dict) else owner[key]


def replace_index(**fields: object) -> Callable[[Metadata], None]:
    """Return a change of the first key of `storage_data`."""

    def change(metadata: Metadata) -> None:
        (index, info), *_ = metadata.storage_data.items()
        index.__dict__.update(fields)
        metadata.storage_data = {index: info}

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_field("state_dict_metadata", value=[]),
        set_field("state_dict_metadata", value=None),
        set_field("state_dict_metadata", value={1: BytesStorageMetadata()}),
        set_field("state_dict_metadata", 0, value=None),
        set_field("state_dict_metadata", 0, value=StorageMeta()),
        set_field("state_dict_metadata", 0, "properties", value=None),
        set_field("state_dict_metadata", 0, "properties", "dtype", value=torch.strided),
        set_field("state_dict_metadata", 0, "size", value=(2, 3)),
        set_field("state_dict_metadata", 0, "chunks", value=()),
        set_field("state_dict_metadata", 0, "chunks", value=[None]),
        set_field("state_dict_metadata", 0, "chunks", 0, "offsets", value=[0, 0]),
        set_field("state_dict_metadata", 0, "chunks", 0, "sizes", value=None),
        set_field("storage_data", value=None),
        set_field("storage_data", value=[1]),
        set_field("storage_data", value={"w": _StorageInfo("a", 0, 1)}),
        set_field("storage_data", 0, value=None),
        set_field("storage_data", 0, value=BytesStorageMetadata()),
        set_field("storage_data", 0, "relative_path", value=Path("a")),
        set_field("storage_data", 0, "relative_path", value="../other/__0_0.distcp"),
        set_field("storage_data", 0, "relative_path", value="/etc/passwd"),
        set_field("storage_data", 0, "offset", value=-1),
        set_field("storage_data", 0, "offset", value=0.0),
        set_field("storage_data", 0, "length", value=-1),
        set_field("storage_data", 0, "length", value="9"),
        set_field("storage_data", 0, "length", value=True),
        set_field("storage_data", 0, "transform_descriptors", value="zstd"),
        replace_index(fqn=3),
        replace_index(offset=(0, 0)),
        replace_index(index="0"),
    ],
)
def test_malformed_metadata_are_found(change: Callable[[Metadata], None]) -> None:
    metadata = sample()
    change(metadata)
    with pytest.raises(CorruptCheckpointError) as caught:
        load_metadata(pickle.dumps(metadata), path=PATH)
    assert caught.value.path == PATH


@pytest.mark.parametrize("field", ["state_dict_metadata", "storage_data"])
def test_a_missing_field_is_found(field: str) -> None:
    metadata = sample()
    del metadata.__dict__[field]
    with pytest.raises(CorruptCheckpointError, match=field):
        load_metadata(pickle.dumps(metadata), path=PATH)


@pytest.mark.parametrize("value", [None, 1, {}, "x", StorageMeta(), MetadataIndex("w")])
def test_what_is_no_metadata_is_found(value: object) -> None:
    with pytest.raises(CorruptCheckpointError, match="in place of Metadata"):
        load_metadata(pickle.dumps(value), path=PATH)


@dataclasses.dataclass
class Place(_StorageInfo):
    """What a custom writer may put into `storage_data`."""

    node: str = "n0"


def test_an_allowed_place_loads() -> None:
    metadata = sample()
    metadata.storage_data = {MetadataIndex("b"): Place("x", 1, 2)}
    name = f"{Place.__module__}.{Place.__qualname__}"
    with pytest.raises(UnsupportedError, match=name):
        load_metadata(pickle.dumps(metadata), path=PATH)
    assert load_metadata(pickle.dumps(metadata), path=PATH, allow=[name]) == metadata
