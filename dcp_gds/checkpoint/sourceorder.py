"""Source order: which tensors of a save are copied, and in what order the sources are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.planner import SavePlanner

from dcp_gds.checkpoint.blocked import Phase
from dcp_gds.checkpoint.packing import packed_pieces
from dcp_gds.checkpoint.saveitem import (
    COPIED_LENGTH_MAX,
    SaveItem,
    form_of,
    is_dense,
    resolve_tensor,
)
from dcp_gds.checkpoint.sources import Milestone, Sources
from dcp_gds.io.arena import Arena, padded
from dcp_gds.io.device import accelerator_of

__all__ = ["SourceOrder", "order_sources"]

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Copy:
    """An item whose source is copied into the arena before it is written."""

    item: SaveItem
    target: torch.Tensor
    guarded: bool


@dataclass(frozen=True, slots=True)
class SourceOrder:
    """Items in the order of the file, and what has to be done when the writer comes to a place.

    Parameters
    ----------
    items
        First what was copied when the save began and byte items that are not held, then what is
        read from its own memory, the unguarded first, then what is copied now.
    after
        By number of items that are written: what to do then.
    copied_bytes, direct_bytes
        Bytes that are copied now, and bytes of large tensors that are not.
    """

    items: list[SaveItem]
    after: Mapping[int, Callable[[], None]]
    copied_bytes: int
    direct_bytes: int


def order_sources(
    items: Iterable[SaveItem],
    planner: SavePlanner,
    *,
    sources: Sources,
    arena: Arena,
    bytes_max: int,
    alignment: int,
) -> SourceOrder:
    """Give copies their memory, up to `bytes_max` in all, and order the rest.

    Copying all that fits first and then writing the rest from its own memory holds the trainer for
    the copy and (state - ceiling) at the drive's speed; no order can do with less writing.
    """
    front: list[SaveItem] = []
    live_front = False
    large: dict[bool, list[SaveItem]] = {False: [], True: []}
    behind: list[SaveItem] = []
    for item in items:
        if item.envelope is None:
            # The objects were copied when the save began, but not the large tensors in them: DCP
            # pickles a tuple with all that is in it. So what is made again when it is written is
            # read while the trainer waits; what is held has been made already.
            reads_live = item.value is None and bool(sources.live)
            live_front = live_front or reads_live
            (front if item.remainder is None or reads_live else behind).append(item)
        elif item.payload_length <= COPIED_LENGTH_MAX:
            front.append(item)
            live_front = live_front or _is_live(item, sources)
        else:
            large[_is_guarded(item, planner, sources)].append(item)
    chosen = _choose(large, bytes_max=bytes_max)
    arena.reserve(sum(padded(item.payload_length) for item, _ in chosen))
    copies = [_Copy(item, arena.take(item.payload_length), guarded) for item, guarded in chosen]
    picked = {id(item) for item, _ in chosen}
    direct = {
        guarded: [item for item in of_kind if id(item) not in picked]
        for guarded, of_kind in large.items()
    }
    unguarded_end = len(front) + len(direct[False]) if live_front or direct[False] else 0
    guarded_end = len(front) + len(direct[False]) + len(direct[True]) if direct[True] else 0
    return SourceOrder(
        items=[
            *front,
            *direct[False],
            *direct[True],
            *(_as_copied(copy, alignment=alignment) for copy in copies),
            *behind,
        ],
        after=_steps(
            copies,
            planner,
            sources,
            unguarded_end=unguarded_end,
            guarded_end=max(guarded_end, unguarded_end),
        ),
        copied_bytes=sum(item.payload_length for item, _ in chosen),
        direct_bytes=sum(item.payload_length for kind in direct.values() for item in kind),
    )


def _choose(large: Mapping[bool, list[SaveItem]], *, bytes_max: int) -> list[tuple[SaveItem, bool]]:
    """What is copied: the unguarded first, because `async_save` itself waits for those."""
    room = bytes_max
    chosen = []
    for guarded, items in large.items():
        for item in items:
            if padded(item.payload_length) <= room:
                room -= padded(item.payload_length)
                chosen.append((item, guarded))
    return chosen


def _steps(
    copies: list[_Copy],
    planner: SavePlanner,
    sources: Sources,
    *,
    unguarded_end: int,
    guarded_end: int,
) -> Mapping[int, Callable[[], None]]:
    """What to do before the first item, behind the unguarded and behind the guarded sources."""

    def copy(*, guarded: bool) -> None:
        sources.enter(Phase.COPY)
        for each in copies:
            if each.guarded is guarded:
                _fill(each, planner)
        sources.enter(Phase.DRIVE)

    def unguarded_are_read() -> None:
        sources.mark(Milestone.UNGUARDED)
        copy(guarded=True)

    def all_are_read() -> None:
        sources.mark(Milestone.ALL)

    steps: dict[int, list[Callable[[], None]]] = {0: [lambda: copy(guarded=False)]}
    steps.setdefault(unguarded_end, []).append(unguarded_are_read)
    steps.setdefault(guarded_end, []).append(all_are_read)
    return {place: _in_turn(actions) for place, actions in steps.items()}


def _in_turn(actions: list[Callable[[], None]]) -> Callable[[], None]:
    """One action that does several."""

    def act() -> None:
        for action in actions:
            action()

    return act


def _fill(copy: _Copy, planner: SavePlanner) -> None:
    """Copy a source's bytes, in the order in which they are stored."""
    tensor = resolve_tensor(copy.item.write_item, planner)
    # An asynchronous save has copied all that is not in host memory when it began.
    assert accelerator_of(tensor) is None
    if is_dense(tensor):
        # Its elements in the order of memory: a contiguous vector, whatever its strides.
        copy.target.copy_(_bytes_of(tensor))
        return
    offset = 0
    for piece in packed_pieces(tensor, bytes_max=_PIECE_BYTES):
        flat = piece.reshape(-1).view(torch.uint8)
        copy.target[offset : offset + flat.numel()].copy_(flat)
        offset += flat.numel()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor as a vector that shares its memory."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8)


def _as_copied(copy: _Copy, *, alignment: int) -> SaveItem:
    """The item with the copy as its value."""
    envelope = copy.item.envelope
    assert envelope is not None
    form = envelope.form
    value = copy.target.view(form.dtype).as_strided(form.size, form.stride)
    assert form_of(value) == form
    return dataclasses.replace(
        copy.item, remainder=value.data_ptr() % alignment, value=value, transient=False
    )


def _is_live(item: SaveItem, sources: Sources) -> bool:
    """Whether a small tensor may be a view of one that was not copied."""
    if not isinstance(item.value, torch.Tensor):
        return True
    return item.value.untyped_storage().data_ptr() in sources.live


def _is_guarded(item: SaveItem, planner: SavePlanner, sources: Sources) -> bool:
    """Whether only a guarded optimizer's step changes the item's source."""
    if not sources.guarded or item.transient:
        return False
    tensor = resolve_tensor(item.write_item, planner)
    return tensor.untyped_storage().data_ptr() in sources.guarded
