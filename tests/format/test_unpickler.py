"""A metadata file runs nothing and changes nothing: hostile and random pickles are loaded."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path, PureWindowsPath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed._shard.sharded_tensor import metadata as sharded_tensor_metadata
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorProperties

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.unpickler import unpickle
from tests.format.picklecode import BUILD, METADATA, REDUCE, TUPLE1, TUPLE2, named, program, text

PATH = "/ckpt/.metadata"
ARGUMENT = "open('/dev/null')"


def load(data: bytes, *allow: str) -> object:
    return unpickle(data, path=PATH, allow=frozenset(allow))


class Hostile:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class Note:
    """What a custom planner may put into its metadata."""

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_pickled_call_does_not_run(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    hostile = pickle.dumps({"x": [Hostile(os.system, f"touch {marker}")]}, protocol=protocol)
    with pytest.raises(UnsupportedError, match=r"/ckpt/\.metadata names posix\.system.*allow="):
        load(hostile)
    assert not marker.exists()
    pickle.loads(hostile)
    assert marker.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("builtins", "exec"),
        ("builtins", "__import__"),
        ("builtins", "bytearray"),
        ("builtins", "list"),
        ("builtins", "getattr.__call__"),
        ("importlib", "import_module"),
        ("functools", "partial"),
        ("operator", "attrgetter"),
        ("copyreg", "_reconstructor"),
        ("collections", "OrderedDict.__init__"),
        ("pathlib", "Path.write_text"),
        ("pathlib", "os.system"),
        ("torch", "os.system"),
        ("torch", "load"),
        ("torch", "Tensor"),
        ("torch", "float32.to_complex"),
        ("torch.hub", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.serialization", "load"),
        ("torch.serialization", "_get_layout.cache"),
        ("torch._utils", "_rebuild_tensor_v2"),
        (METADATA, "os"),
        (METADATA, "os.system"),
        (METADATA, "torch"),
        (METADATA, "torch.load"),
        (METADATA, "field"),
        (METADATA, "Enum"),
        (METADATA, "Metadata.__init__"),
        (METADATA, "TensorProperties.create_from_tensor"),
        ("torch.distributed.checkpoint.filesystem", "pickle.loads"),
        ("torch.distributed.checkpoint.filesystem", "FileSystemWriter"),
        ("dcp_gds.format.unpickler", "_Unpickler"),
    ],
)
def test_other_names_are_refused_before_anything_is_imported(module: str, name: str) -> None:
    call = program(named(module, name), text(ARGUMENT), TUPLE1, REDUCE)
    with pytest.raises(UnsupportedError) as caught:
        load(call)
    assert f"{module}.{name}" in str(caught.value)
    with pytest.raises(UnsupportedError):
        load(program(named("no.such.module", "x")))


@pytest.mark.parametrize(
    "owner",
    [
        named(METADATA, "Metadata"),
        named("torch", "float32"),
        named("torch", "Size"),
        named("builtins", "getattr"),
        named("builtins", "complex"),
        text("x"),
    ],
)
def test_getattr_reads_nothing_but_an_enum(owner: bytes) -> None:
    for name in ("__class__", "__reduce__", "TORCH_CHANNELS_LAST"):
        with pytest.raises(CorruptCheckpointError):
            load(program(named("builtins", "getattr"), owner, text(name), TUPLE2, REDUCE))
    enum = named(METADATA, "_MEM_FORMAT_ENCODING")
    with pytest.raises(CorruptCheckpointError):
        load(program(named("builtins", "getattr"), enum, text("__class__"), TUPLE2, REDUCE))


@pytest.mark.parametrize(
    "target",
    [
        named(METADATA, "Metadata"),
        named(METADATA, "TensorProperties"),
        named(METADATA, "_MEM_FORMAT_ENCODING"),
        named("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        named("torch.serialization", "_get_layout"),
        named("torch", "Size"),
        named("torch", "float32"),
        named("builtins", "getattr"),
        named("builtins", "complex"),
        named("collections", "OrderedDict"),
        named("pathlib", "PosixPath"),
        named(METADATA, "_MEM_FORMAT_ENCODING") + b"K\0" + TUPLE1 + REDUCE,
        named("torch.serialization", "_get_layout") + text("torch.strided") + TUPLE1 + REDUCE,
    ],
)
@pytest.mark.parametrize(
    "state",
    [
        # A dict goes into the target's __dict__, the second of a pair through setattr.
        b"}" + text("_value_") + b"K\x07s",
        b"N}" + text("version") + b"K\x07s" + TUPLE2,
        b"N}" + text("_member") + b"K\x07s" + TUPLE2,
        b"N}" + text("__new__") + named("torch", "Size") + b"s" + TUPLE2,
    ],
)
def test_nothing_that_is_shared_can_be_changed(target: bytes, state: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        load(program(target, state, BUILD))


def test_what_the_process_saves_later_is_not_spoilt() -> None:
    before = pickle.dumps(TensorProperties())
    member = named(METADATA, "_MEM_FORMAT_ENCODING") + b"K\0" + TUPLE1 + REDUCE
    change = program(member, b"}" + text("_value_") + b"K\x02s", BUILD)
    with pytest.raises(CorruptCheckpointError):
        load(change)
    assert pickle.dumps(TensorProperties()) == before
    # The same pickle does change the member when Python's own unpickler loads it.
    original = dcp_metadata._MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    pickle.loads(change)
    assert original._value_ == 2
    original._value_ = 0


def test_paths_come_back_from_every_python() -> None:
    path = Path("/ckpt/step 1")
    pickled = pickle.dumps(StorageMeta(checkpoint_id=path), protocol=4)
    meta = load(pickled)
    assert isinstance(meta, StorageMeta)
    assert meta.checkpoint_id == path
    local = program(named("pathlib._local", "PosixPath"), text("/a"), text("b"), TUPLE2, REDUCE)
    assert load(local) == Path("/a/b")
    windows = program(named("pathlib", "WindowsPath"), text("C:\\a"), TUPLE1, REDUCE)
    assert load(windows) == PureWindowsPath("C:/a")


class _ByName(pickle.Pickler):
    """Pickles enum members as Python 3.11.0 to 3.11.3 did."""

    def reducer_override(self, obj: object) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (getattr, (type(obj), obj.name)) if isinstance(obj, Enum) else NotImplemented


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last, torch.preserve_format]
)
def test_tensor_properties_come_back_from_every_torch(
    memory_format: torch.memory_format, tmp_path: Path
) -> None:
    properties = TensorProperties(torch.int8, torch.sparse_coo, True, memory_format, True)
    assert load(pickle.dumps(properties)) == properties
    old = sharded_tensor_metadata.TensorProperties(
        torch.int8, torch.sparse_coo, True, memory_format, True
    )
    assert load(pickle.dumps(old)) == properties
    with (tmp_path / "by name").open("wb") as file:
        _ByName(file, protocol=4).dump(properties)
    by_name = (tmp_path / "by name").read_bytes()
    assert b"getattr" in by_name
    assert load(by_name) == properties


def test_allowed_names_come_back_as_they_are() -> None:
    pickled = pickle.dumps(Metadata({}, planner_data=Note(7)), protocol=4)
    name = f"{Note.__module__}.{Note.__qualname__}"
    with pytest.raises(UnsupportedError, match=f"pass allow=\\['{name}'\\]"):
        load(pickled)
    with pytest.raises(UnsupportedError):
        load(pickled, Note.__module__, "Note", f"{name}s")
    loaded = load(pickled, name)
    assert isinstance(loaded, Metadata)
    assert isinstance(loaded.planner_data, Note)
    assert loaded.planner_data.value == 7


def test_an_error_of_an_allowed_class_is_damage() -> None:
    call = program(named("builtins", "int"), text("seven"), TUPLE1, REDUCE)
    with pytest.raises(CorruptCheckpointError, match="ValueError: invalid literal"):
        load(call, "builtins.int")


def test_a_lack_of_memory_is_not_called_damage() -> None:
    length = b"\x8a\x08" + (2**62).to_bytes(8, "little")
    call = program(named("builtins", "bytearray"), length, TUPLE1, REDUCE)
    with pytest.raises(MemoryError):
        load(call, "builtins.bytearray")


PIECES = [
    *(
        bytes([opcode])
        for opcode in b"(N\x88\x89]})\x8ft\x85\x86\x87aesu\x90\x91Rb\x81\x92\x93\x94"
    ),
    *(named(METADATA, name) for name in ("Metadata", "TensorProperties", "MetadataIndex")),
    *(named(METADATA, name) for name in ("_MEM_FORMAT_ENCODING", "StorageMeta")),
    *(named("builtins", name) for name in ("getattr", "complex", "range", "slice")),
    named("torch", "Size"),
    named("torch", "float32"),
    named("collections", "OrderedDict"),
    named("pathlib", "PosixPath"),
    named("torch.serialization", "_get_layout"),
    *(text(value) for value in ("fqn", "_member", "__class__", "__setstate__", "a/b")),
    *(b"h" + bytes([index]) for index in range(6)),
    *(b"K" + bytes([value]) for value in (0, 1, 255)),
    b"J\xff\xff\xff\xff",
    b"G" + struct.pack(">d", float("nan")),
]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_program_of_known_instructions_loads_or_is_refused(pieces: list[bytes]) -> None:
    before = pickle.dumps(TensorProperties())
    with contextlib.suppress(CorruptCheckpointError, UnsupportedError):
        load(program(*pieces, b"\x94N\x86"))
    assert pickle.dumps(TensorProperties()) == before
