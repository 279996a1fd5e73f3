"""Archive: the tensor that a torch.save archive holds, and where its bytes are.

torch.load itself does the work under FakeTensorMode, so there is no pickle reader here, and an
archive written by stock DCP is understood as well as our own.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import IO

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent

__all__ = ["StoredTensor", "read_stored_tensor"]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in an archive.

    Parameters
    ----------
    dtype, size, stride
        As the tensor had them; strides in elements.
    storage
        Extent of the storage's bytes, relative to the archive's start.
    first
        Offset in bytes of the first element inside `storage`.
    conj, neg
        The tensor's lazy conjugate and negative bits.
    """

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    storage: Extent
    first: int = 0
    conj: bool = False
    neg: bool = False


def read_stored_tensor(archive: IO[bytes], *, archive_length: int) -> StoredTensor:
    """Read the description of the one tensor in an archive.

    Parameters
    ----------
    archive
        Seekable; begins at offset 0 with the archive. Only head and tail are read.
    archive_length
        Bytes; the storage has to lie inside.

    Raises
    ------
    CorruptCheckpointError
        If torch.load refuses the archive, or it holds anything but one plain tensor.
    """
    try:
        with FakeTensorMode():
            tensor = torch.load(archive, map_location="cpu", weights_only=True)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        AssertionError,
        NotImplementedError,
        EOFError,
        OverflowError,
        pickle.UnpicklingError,
        UnicodeDecodeError,
    ) as error:
        raise CorruptCheckpointError(f"torch.load refuses the archive: {error}") from error
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise CorruptCheckpointError(
            f"the archive holds {type(tensor).__name__}, not a dense tensor"
        )
    storage = tensor.untyped_storage()
    # torch notes where it would have read the bytes from; None in a file of torch's format before
    # 1.6.
    offset = getattr(storage, "_checkpoint_offset", None)
    extent = Extent(-1 if offset is None else int(offset), storage.nbytes())
    if extent.offset < 0 or extent.end > archive_length:
        raise CorruptCheckpointError(
            f"the archive's storage lies at [{extent.offset}, {extent.end}) of {archive_length}"
            " bytes"
        )
    return StoredTensor(
        dtype=tensor.dtype,
        size=tuple(tensor.size()),
        stride=tensor.stride(),
        storage=extent,
        first=int(tensor.storage_offset()) * tensor.dtype.itemsize,
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
    )
