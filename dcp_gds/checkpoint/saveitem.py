"""Save item: a write item that has been looked at once: its size and memory are known."""

from __future__ import annotations

import ctypes
import io
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.multiprocessing.reductions import StorageWeakRef

from dcp_gds.errors import UnsupportedError
from dcp_gds.format.envelope import Envelope, EnvelopeCache, TensorForm
from dcp_gds.format.placement import ItemSize
from dcp_gds.io.device import MemoryRange, accelerator_of, device_of

__all__ = [
    "COPIED_LENGTH_MAX",
    "SaveItem",
    "byte_item_data",
    "check_tensor",
    "form_of",
    "held_memory",
    "is_copied",
    "is_dense",
    "look_at_items",
    "memory_of",
    "resolve_tensor",
]

# Below this a payload is copied into a seam: several small writes cost more than one copy at memory
# speed.
COPIED_LENGTH_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class SaveItem:
    """What must be known of a write item before the first byte is written.

    Parameters
    ----------
    payload_length
        Bytes of the tensor, or of the byte item.
    envelope
        What is put around a tensor; None for a byte item.
    remainder
        Where in memory the payload lies modulo the alignment; None if it is copied through seams.
    value
        What is written, when it is held until then; else it is resolved again.
    transient
        The planner allocated the value for this save, and it is not held.
    """

    write_item: WriteItem
    payload_length: int
    envelope: Envelope | None = None
    remainder: int | None = None
    value: torch.Tensor | bytes | None = None
    transient: bool = False

    @property
    def fqn(self) -> str:
        """The item's fully qualified name."""
        return self.write_item.index.fqn

    @property
    def size(self) -> ItemSize:
        """What placement needs to know."""
        if self.envelope is None:
            return ItemSize(0, self.payload_length, 0, self.remainder)
        head, tail = self.envelope.head, self.envelope.tail
        return ItemSize(len(head), self.payload_length, len(tail), self.remainder)


def look_at_items(
    plan: SavePlan,
    planner: SavePlanner,
    *,
    alignment: int,
    envelopes: EnvelopeCache,
    held_bytes_max: int,
) -> list[SaveItem]:
    """Resolve every write item once, and put the items in the order of the file.

    Byte items come first, because their length is known only when they are resolved. Then items
    that are copied, then large tensors, both in the plan's order. Byte items and small tensors are
    held up to `held_bytes_max` together, so that they need not be resolved twice.

    Raises
    ------
    UnsupportedError
        If an item cannot be saved without losing something; names it.
    """
    byte_items = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
    tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
    room = held_bytes_max
    items = []
    for write_item in byte_items:
        item = _look_at_bytes(write_item, planner, alignment=alignment, held_bytes_max=room)
        items.append(item)
        room -= item.payload_length if item.value is not None else 0
    for write_item in tensors:
        item = _look_at_tensor(
            write_item, planner, alignment=alignment, envelopes=envelopes, held_bytes_max=room
        )
        items.append(item)
        room -= item.payload_length if item.value is not None else 0
    # Stable: what is copied in front, so that it forms few, long seams.
    return sorted(items, key=lambda item: item.remainder is not None)


def resolve_tensor(write_item: WriteItem, planner: SavePlanner) -> torch.Tensor:
    """Ask the planner for a write item's tensor and refuse what cannot be saved rightly.

    Raises
    ------
    UnsupportedError
        Naming the item: not a plain dense tensor in host memory.
    """
    value = planner.resolve_data(write_item)
    fqn = write_item.index.fqn
    if not isinstance(value, torch.Tensor):
        raise UnsupportedError(f"{fqn}: the planner gave {type(value).__name__} for a tensor item")
    tensor = check_tensor(value, fqn=fqn)
    try:
        device_of(tensor)
    except UnsupportedError as error:
        raise UnsupportedError(f"{fqn}: {error}") from error
    return tensor


def check_tensor(value: torch.Tensor, *, fqn: str) -> torch.Tensor:
    """Detach a tensor; refuse what a plain dense tensor would not give back.

    Raises
    ------
    UnsupportedError
        Naming the item.
    """
    # Most need no detaching, which would make an object for each of thousands.
    tensor = value if type(value) is torch.Tensor and not value.requires_grad else value.detach()
    if type(tensor) is not torch.Tensor:
        raise UnsupportedError(
            f"{fqn}: cannot save a {type(tensor).__name__}: its bytes alone would lose what the"
            " subclass adds; convert it to a plain tensor, or unwrap it in the planner"
        )
    if tensor.is_quantized or tensor.layout is not torch.strided or tensor.is_meta:
        kind = "meta" if tensor.is_meta else f"{tensor.layout} {tensor.dtype}"
        raise UnsupportedError(
            f"{fqn}: cannot save a {kind} tensor: DCP loads into plain dense tensors, which would"
            " lose a scale, indices or all data; save its dense parts under names of their own"
        )
    return tensor


def byte_item_data(item: SaveItem, planner: SavePlanner) -> bytes:
    """Return a byte item's value, resolved again when it is not held.

    Raises
    ------
    UnsupportedError
        If it is not as long as it was when the file was laid out.
    """
    if isinstance(item.value, bytes):
        return item.value
    data = _resolve_bytes(item.write_item, planner)
    length = len(data)
    if length != item.payload_length:
        raise UnsupportedError(
            f"{item.fqn}: serialized to {item.payload_length} bytes, then to {length}: it"
            " changed during the save; do not change the state while it is saved, or raise"
            " staging_bytes_max so that it is held"
        )
    return data


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one range without gap or overlap, and the bytes are the values."""
    if tensor.is_conj() or tensor.is_neg():
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True


def form_of(tensor: torch.Tensor) -> TensorForm:
    """The form in which a tensor is stored: its own if it is dense, else contiguous."""
    if is_dense(tensor):
        return TensorForm(tensor.dtype, tuple(tensor.size()), tensor.stride())
    return TensorForm.contiguous(tensor.dtype, tensor.size())


def is_copied(tensor: torch.Tensor) -> bool:
    """Whether a tensor goes through seams: small, not dense, or lazily conjugate or negative."""
    return tensor.nbytes <= COPIED_LENGTH_MAX or not is_dense(tensor)


def held_memory(item: SaveItem) -> MemoryRange | None:
    """The bytes of an item that is small and held in host memory; None of any other."""
    value = item.value
    if item.remainder is not None or value is None:
        return None
    if isinstance(value, torch.Tensor) and accelerator_of(value) is not None:
        return None
    return memory_of(value)


def memory_of(value: torch.Tensor | bytes) -> MemoryRange:
    """The bytes of a dense tensor in host memory, or of a byte item; `value` has to be kept."""
    if isinstance(value, bytes):
        return MemoryRange(_address_of(value), len(value))
    return device_of(value).memory(value)


def _address_of(data: bytes) -> int:
    """Address of the bytes, which stay there as long as the object lives."""
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert address is not None
    return address


def _look_at_tensor(
    write_item: WriteItem,
    planner: SavePlanner,
    *,
    alignment: int,
    envelopes: EnvelopeCache,
    held_bytes_max: int,
) -> SaveItem:
    """Resolve a tensor and note form and address; hold it if it is small, else let go of it."""
    tensor = resolve_tensor(write_item, planner)
    try:
        envelope = envelopes.get(form_of(tensor))
    except UnsupportedError as error:
        raise UnsupportedError(f"{write_item.index.fqn}: {error}") from error
    length = envelope.form.length
    if is_copied(tensor):
        held = length <= min(COPIED_LENGTH_MAX, held_bytes_max) and is_dense(tensor)
        return SaveItem(write_item, length, envelope, value=tensor if held else None)
    remainder = device_of(tensor).memory(tensor).address % alignment
    # When the storage dies with our reference, the planner made it for this save alone.
    storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
    del tensor
    return SaveItem(write_item, length, envelope, remainder, transient=bool(storage.expired()))


def _look_at_bytes(
    write_item: WriteItem, planner: SavePlanner, *, alignment: int, held_bytes_max: int
) -> SaveItem:
    """Resolve a byte item; hold its value if there is room."""
    data = _resolve_bytes(write_item, planner)
    length = len(data)
    remainder = None if length <= COPIED_LENGTH_MAX else _address_of(data) % alignment
    if length > held_bytes_max:
        return SaveItem(write_item, length, remainder=remainder, transient=True)
    return SaveItem(write_item, length, remainder=remainder, value=data)


def _resolve_bytes(write_item: WriteItem, planner: SavePlanner) -> bytes:
    """Ask the planner for a byte item."""
    value = planner.resolve_data(write_item)
    if not isinstance(value, io.BytesIO):
        raise UnsupportedError(
            f"{write_item.index.fqn}: the planner gave {type(value).__name__} for a byte item"
        )
    # Not getbuffer, which copies the bytes that the BytesIO was made from.
    return value.getvalue()
