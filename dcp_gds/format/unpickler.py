"""Unpickler: loads the pickle of a metadata file without running anything that the file chooses.

A pickle is a program that calls what it names. Here it can name only what the metadata of stock DCP
name, and gets a stand-in for that: a callable that makes one kind of plain value, and nothing else.
A pickle can also set attributes of whatever it names or fetches. Every object within its reach is
therefore either new or sealed: it cannot change a class or an enum member of the process, and so
cannot spoil what the process saves later.

What a file can still do is ask for time or memory, as any file can; tuples nested 100,000 deep as a
dictionary's key even exhaust the stack.
"""

from __future__ import annotations

import io
import os
import pathlib
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch.distributed.checkpoint import filesystem, metadata

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from dcp_gds.format.opcodes import check_opcodes

__all__ = ["unpickle"]

# Without a bound, a short file could ask for many copies of one long tuple. torch has no limit of
# its own; real tensors have a handful of dimensions.
_DIMENSIONS_MAX = 256
_METADATA_MODULE = metadata.__name__
# Where TensorProperties was before it came to DCP; its state is still the same.
_SHARDED_TENSOR_MODULE = "torch.distributed._shard.sharded_tensor.metadata"


def unpickle(
    data: bytes | memoryview, *, path: str | os.PathLike[str], allow: frozenset[str]
) -> object:
    """Load one pickle of protocol 4 or 5.

    Parameters
    ----------
    path
        The file, for messages.
    allow
        Further names, as "module.qualname", that the pickle may name. Those it gets as they are.

    Raises
    ------
    UnsupportedError
        If the pickle names anything else.
    CorruptCheckpointError
        If it is broken.
    """
    try:
        check_opcodes(data)
        return _Unpickler(data, path=path, allow=allow).load()
    except (UnsupportedError, MemoryError):
        raise
    except Exception as error:  # whatever a broken pickle makes the unpickler or a class run into
        raise CorruptCheckpointError(
            f"the pickle is broken: {type(error).__name__}: {error}", path
        ) from error


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows few names."""

    def __init__(
        self, data: bytes | memoryview, *, path: str | os.PathLike[str], allow: frozenset[str]
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._path = path
        self._allow = allow

    def find_class(self, module: str, name: str) -> object:
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        qualified = f"{module}.{name}"
        if qualified in self._allow:
            return super().find_class(module, name)
        raise UnsupportedError(
            f"{os.fspath(self._path)} names {qualified}, which the metadata of DCP do not: if its"
            f" writer's planner put it there, and you trust the file, pass allow=[{qualified!r}]"
        )


class _SealedType(type):
    """Type of the stand-ins: their attributes cannot be set."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a sealed class cannot be set")


class _SealedMember:
    """Stands for an enum member in comparisons. A member itself is shared, and not immutable."""

    __slots__ = ("_member",)
    _member: object

    def __init__(self, member: object) -> None:
        object.__setattr__(self, "_member", member)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a sealed member cannot be set")

    def __eq__(self, other: object) -> bool:
        return bool(self._member == other)

    def __hash__(self) -> int:
        return hash(self._member)


def _sealed(new: Callable[..., object]) -> type:
    """Return a class that makes what `new`, as its `__new__`, returns."""
    # A pickle calls a class in two ways, as a callable and through __new__: this serves both.
    return _SealedType("Sealed", (), {"__slots__": (), "__new__": new})


def _blank(cls: type) -> Callable[[type], object]:
    """Return a `__new__` for instances without state, which the pickle sets afterwards."""
    new = object.__new__
    return lambda _: new(cls)


def _size(_: type, dimensions: tuple[int, ...]) -> torch.Size:
    if len(dimensions) > _DIMENSIONS_MAX:
        raise ValueError(f"a size of {len(dimensions)} dimensions")
    return torch.Size(dimensions)


def _layout(_: type, name: str) -> torch.layout:
    return _LAYOUTS[name]


def _memory_format(_: type, value: int) -> _SealedMember:
    return _SealedMember(metadata._MEM_FORMAT_ENCODING(value))


def _memory_format_by_name(_: type, enum: object, name: str) -> _SealedMember:
    """Stands for getattr, by which Python 3.11.0 to 3.11.3 pickled enum members."""
    if enum is not _MEMORY_FORMAT:
        raise ValueError("getattr of anything but an enum")
    return _SealedMember(metadata._MEM_FORMAT_ENCODING[name])


def _posix_path(_: type, *parts: str) -> pathlib.Path:
    return pathlib.Path(*parts)


def _windows_path(_: type, *parts: str) -> pathlib.PureWindowsPath:
    return pathlib.PureWindowsPath(*parts)


def _ordered_dict(_: type) -> OrderedDict[object, object]:
    return OrderedDict()


def _known_names() -> Mapping[tuple[str, str], object]:
    """Return what a pickle may name, by module and name."""
    known: dict[tuple[str, str], object] = {
        ("torch", name): value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    }
    known["torch", "Size"] = _sealed(_size)
    known["torch.serialization", "_get_layout"] = _sealed(_layout)
    known["builtins", "getattr"] = _sealed(_memory_format_by_name)
    known["collections", "OrderedDict"] = _sealed(_ordered_dict)
    # These and their classes cannot be changed, and are no longer than their arguments.
    for builtin in (complex, range, slice):
        known["builtins", builtin.__name__] = builtin
    for cls in (
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata.TensorProperties,
        metadata.TensorStorageMetadata,
        filesystem._StorageInfo,
    ):
        known[cls.__module__, cls.__name__] = _sealed(_blank(cls))
    known[_SHARDED_TENSOR_MODULE, "TensorProperties"] = _sealed(_blank(metadata.TensorProperties))
    known[_METADATA_MODULE, "_MEM_FORMAT_ENCODING"] = _MEMORY_FORMAT
    known[_SHARDED_TENSOR_MODULE, "MEM_FORMAT_ENCODING"] = _MEMORY_FORMAT
    for module in ("pathlib", "pathlib._local"):  # the second in Python 3.13
        for name in ("PosixPath", "PurePosixPath"):
            known[module, name] = _sealed(_posix_path)
        for name in ("WindowsPath", "PureWindowsPath"):
            known[module, name] = _sealed(_windows_path)
    return MappingProxyType(known)


_LAYOUTS = MappingProxyType(
    {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)}
)
_MEMORY_FORMAT = _sealed(_memory_format)
_KNOWN = _known_names()
