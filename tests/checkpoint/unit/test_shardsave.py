"""A failed shard save leaves nothing behind: a planner or a step engine puts faults under it."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.multiprocessing.reductions import StorageWeakRef

from dcp_gds.checkpoint import shardsave
from dcp_gds.checkpoint.saveitem import look_at_items
from dcp_gds.checkpoint.shardlayout import ShardLayout, lay_out
from dcp_gds.config import WriterOptions
from dcp_gds.errors import TransferError, UnsupportedError
from dcp_gds.format.envelope import EnvelopeCache
from dcp_gds.io.engine import Engine, EngineName
from dcp_gds.io.selection import Selection
from dcp_gds.io.staging import StagingPool
from tests.io.stepengine import StepEngine

MIB = 1 << 20
OPTIONS = WriterOptions(transfer_bytes=64 << 10, staging_bytes_max=4 * MIB, queue_depth=3)
SELECTION = Selection(EngineName.BUFFERED, "buffered", "for the test", (), 4096)
STATE = {
    "large": torch.arange(300_000),
    "small": torch.arange(10),
    "gaps": torch.arange(400_000)[::3],
    "bytes": b"x" * 700_000,
}


class Planner(DefaultSavePlanner):
    """Counts how often it resolves, and lets a test change what it gives."""

    def __init__(self, change: Callable[[str, int, Any], Any]) -> None:
        super().__init__()
        self._change = change
        self._calls: dict[str, int] = {}

    def resolve_data(self, write_item: Any) -> Any:
        fqn = write_item.index.fqn
        self._calls[fqn] = self._calls.get(fqn, 0) + 1
        return self._change(fqn, self._calls[fqn], super().resolve_data(write_item))


def planned(planner: DefaultSavePlanner, state: dict[str, Any]) -> SavePlan:
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_local_plan()


def laid_out(planner: DefaultSavePlanner, *, held_bytes_max: int = MIB) -> ShardLayout:
    items = look_at_items(
        planned(planner, STATE),
        planner,
        alignment=4096,
        envelopes=EnvelopeCache(checksum=True),
        held_bytes_max=held_bytes_max,
    )
    return lay_out(items, alignment=4096, block_length=4 * MIB)


def save(
    directory: Path, shard: ShardLayout, planner: DefaultSavePlanner, pool: StagingPool
) -> shardsave.ShardOutcome:
    return shardsave.save_shard_file(
        directory / "shard",
        shard,
        planner,
        token="ab" * 16,
        selection=SELECTION,
        options=OPTIONS,
        pool=pool,
        progress=None,
    )


@pytest.fixture
def pool() -> StagingPool:
    return StagingPool(slot_bytes=MIB, bytes_max=4 * MIB)


# The save needs more transfers than that: every one of these faults is reached.
@pytest.fixture(params=range(0, 40, 3))
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StepEngine:
    engine = StepEngine(queue_depth=3, seed=request.param, fail_at=request.param)

    def start(name: EngineName, *, queue_depth: int) -> Engine:
        return engine

    monkeypatch.setattr(shardsave, "start_engine", start)
    return engine


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def free_slots(pool: StagingPool) -> int:
    taken = []
    while (slot := pool.acquire()) is not None:
        taken.append(slot)
    return len(taken)


def test_a_failed_transfer_leaves_nothing(
    tmp_path: Path, pool: StagingPool, faulty: StepEngine
) -> None:
    planner = Planner(lambda fqn, call, value: value)
    shard = laid_out(planner)
    descriptors = open_descriptors()
    threads = threading.active_count()
    with pytest.raises(TransferError) as info:
        save(tmp_path, shard, planner, pool)
    assert (info.value.errno, info.value.filename) == (5, str(tmp_path / "shard"))
    assert list(tmp_path.iterdir()) == []
    assert faulty.in_flight == 0
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads
    assert free_slots(pool) == 4


def shortened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:-1]


def converted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.float64)


def turned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(2, -1).clone().t()


@pytest.mark.parametrize("fqn", ["large", "small", "gaps"])
@pytest.mark.parametrize("change", [shortened, converted, turned])
def test_another_tensor_the_second_time_is_refused(
    tmp_path: Path,
    pool: StagingPool,
    fqn: str,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    planner = Planner(
        lambda name, call, value: change(value) if (name, call) == (fqn, 2) else value
    )
    shard = laid_out(planner, held_bytes_max=0)
    with pytest.raises(UnsupportedError, match=rf"^{fqn}: .*repeatable"):
        save(tmp_path, shard, planner, pool)
    assert list(tmp_path.iterdir()) == []
    assert free_slots(pool) == 4


def test_small_values_are_held_as_far_as_there_is_room(tmp_path: Path, pool: StagingPool) -> None:
    state = {f"w{number}": torch.full((4,), float(number)) for number in range(6)}
    calls: list[str] = []

    def note(fqn: str, call: int, value: Any) -> Any:
        calls.append(fqn)
        return value

    planner = Planner(note)
    items = look_at_items(
        planned(planner, state),
        planner,
        alignment=4096,
        envelopes=EnvelopeCache(checksum=True),
        held_bytes_max=4 * 16,
    )
    assert [item.value is not None for item in items] == [True] * 4 + [False] * 2
    calls.clear()
    shard = lay_out(items, alignment=4096, block_length=4 * MIB)
    save(tmp_path, shard, planner, pool)
    assert calls == ["w4", "w5"]
    content = (tmp_path / "shard").read_bytes()
    for number, placement in enumerate(shard.placements):
        payload = placement.payload
        assert content[payload.offset : payload.end] == state[f"w{number}"].numpy().tobytes()


def test_a_byte_item_that_is_not_held_has_to_stay_as_long(
    tmp_path: Path, pool: StagingPool
) -> None:
    def change(fqn: str, call: int, value: Any) -> Any:
        return io.BytesIO(value.getvalue() + b"!") if (fqn, call) == ("bytes", 2) else value

    held = Planner(change)
    save(tmp_path, laid_out(held), held, pool)
    (tmp_path / "shard").unlink()
    released = Planner(change)
    shard = laid_out(released, held_bytes_max=0)
    with pytest.raises(UnsupportedError, match=r"^bytes: serialized to .*staging_bytes_max"):
        save(tmp_path, shard, released, pool)


@pytest.mark.parametrize(("fqn", "value"), [("bytes", torch.ones(3)), ("small", b"no tensor")])
def test_a_value_of_another_kind_is_refused(fqn: str, value: Any) -> None:
    planner = Planner(lambda name, call, given: value if name == fqn else given)
    with pytest.raises(UnsupportedError, match=rf"^{fqn}: the planner gave "):
        laid_out(planner)


def test_values_made_for_the_save_are_not_kept_alive(tmp_path: Path, pool: StagingPool) -> None:
    state = {f"w{index}": torch.full((800_000,), float(index)) for index in range(4)}
    alive: list[Any] = []
    most = 0

    def change(fqn: str, call: int, value: Any) -> Any:
        nonlocal most
        made = value.clone()
        storage: Any = made.untyped_storage()
        alive.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]  # torch's
        most = max(most, sum(not storage.expired() for storage in alive))
        return made

    planner = Planner(change)
    items = look_at_items(
        planned(planner, state),
        planner,
        alignment=4096,
        envelopes=EnvelopeCache(checksum=True),
        held_bytes_max=0,
    )
    assert all(item.transient for item in items)
    assert most == 1
    shard = lay_out(items, alignment=4096, block_length=4 * MIB)
    save(tmp_path, shard, planner, pool)
    # Two do not fit staging_bytes_max, so the second is not made before the first has been written.
    assert most == 1
    content = (tmp_path / "shard").read_bytes()
    for index, placement in enumerate(shard.placements):
        payload = placement.payload
        expected = state[f"w{index}"].numpy().tobytes()
        assert content[payload.offset : payload.end] == expected
