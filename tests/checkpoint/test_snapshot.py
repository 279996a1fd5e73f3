"""A checkpoint holds what the state was when the trainer went on, though the drive is still busy.

Method: a drive so slow that the save is certainly under way; everything is changed as soon as the
call or the guarded step lets it be; once without the wait, to see that the test can fail.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import UnsupportedError
from tests.checkpoint.storage import dcp_load
from tests.ranks import Ranks
from tests.slowdrive import slow_mount

MIB = 1 << 20
RATE = 32 * MIB
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def slow() -> Iterator[Path]:
    with slow_mount(bytes_per_s=RATE) as point:
        yield point


def started(state: dict[str, Any], writer: GDSWriter, **options: Any) -> Future[Any]:
    return cast("Future[Any]", async_save(state, storage_writer=writer, **options))


def load(state: dict[str, Any], path: Path) -> dict[str, Any]:
    target: dict[str, Any] = zeroed(state)
    dcp_load(target, storage_reader=GDSReader(path))
    return target


def zeroed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: zeroed(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [zeroed(entry) for entry in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)()


def weights() -> dict[str, Any]:
    return {f"w{number}": torch.full((2 * MIB,), 1.0) for number in range(4)}


@pytest.mark.parametrize("ceiling_mib", [64, 16, 0])
def test_what_changes_after_the_call_is_not_seen(slow: Path, ceiling_mib: int) -> None:
    state = weights() | {"small": torch.ones(9), "spread": torch.ones(MIB, 2)[:, 1]}
    path = slow / f"after-{ceiling_mib}"
    with GDSWriter(path, host_bytes_max=ceiling_mib * MIB) as writer:
        future = started(state, writer)
        assert not future.done()
        for value in state.values():
            value.fill_(2.0)
        future.result(LIMIT_S)
        report = writer.report
    assert report is not None
    assert report.copied_bytes <= ceiling_mib * MIB
    assert report.copied_bytes + report.direct_bytes <= report.bytes
    assert bool(report.blocked_reason) == bool(report.direct_bytes)
    assert report.blocked_seconds <= report.durable_seconds
    assert all(value.eq(1.0).all() for value in load(state, path).values())


@pytest.mark.parametrize("flatten", [True, False], ids=["tuple", "not-flattened"])
def test_objects_with_large_tensors_are_not_made_again_later(flatten: bool, slow: Path) -> None:
    inner, path = torch.ones(2 * MIB), slow / f"objects-{flatten}"
    state = {"object": (inner, 7) if flatten else {"inner": inner}}
    # Its pickle is longer than what may be held, so it is made once more when it is written.
    with GDSWriter(path, staging_bytes_max=4 * MIB) as writer:
        planner = DefaultSavePlanner(flatten_state_dict=flatten)
        future = started(weights() | state, writer, planner=planner)
        assert not future.done()
        inner.fill_(2.0)
        future.result(LIMIT_S)
    loading = DefaultLoadPlanner(flatten_state_dict=flatten)
    target: dict[str, Any] = {"object": None}
    dcp_load(target, storage_reader=GDSReader(path), planner=loading)
    found = target["object"][0] if flatten else loading.state_dict["object"]["inner"]
    assert found.eq(1.0).all()


def test_without_the_wait_it_would_be(slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GDSWriter, "synchronize_staging", lambda self: None)
    state = weights()
    # One small transfer at a time: most of the state is read long after the call.
    with GDSWriter(slow / "without", host_bytes_max=0, queue_depth=1, transfer_bytes=MIB) as writer:
        future = started(state, writer)
        for value in state.values():
            value.fill_(2.0)
        future.result(LIMIT_S)
    assert not all(value.eq(1.0).all() for value in load(state, slow / "without").values())


class Net(nn.Module):
    """Large parameters, large running statistics, and a buffer that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(2048, 1024, bias=False)
        self.norm = nn.BatchNorm1d(1024)
        self.wide = nn.Buffer(torch.zeros(MIB))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.wide.add_(1)
        return cast(torch.Tensor, self.norm(self.hidden(value))).square().mean()


def take_forward_and_backward(model: nn.Module) -> None:
    model.zero_grad()
    torch.autograd.backward(model(torch.rand(4, 2048)))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_guarded_step(kind: str, slow: Path) -> None:
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    scaler = torch.amp.GradScaler("cpu")
    ema = torch.ones(MIB)
    take_forward_and_backward(model)
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "ema": ema,
        "rng": torch.get_rng_state(),
    }
    expected = copy.deepcopy(state)
    done: list[float] = []
    path = slow / f"guarded-{kind}"
    with GDSWriter(
        path, host_bytes_max=0, progress=lambda now, all_: done.append(now / all_)
    ) as writer:
        guard = writer.guard(optimizer, model=model)
        future = started(state, writer)
        assert max(done, default=0.0) < 0.7, "the guard has not let the trainer go before the end"
        ema.fill_(7.0)
        take_forward_and_backward(model)
        assert not future.done()
        scaler.scale(torch.ones(()))
        optimizer.step()
        scheduler.step()
        guard.remove()
        future.result(LIMIT_S)
    assert_same(load(expected, path), expected)
    assert not optimizer._optimizer_step_pre_hooks


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def test_wait_sources_serves_trainers_without_optimizers(slow: Path) -> None:
    parameters = [nn.Parameter(value) for value in weights().values()]
    state = {f"w{number}": value for number, value in enumerate(parameters)}
    # A guarded optimizer whose step is never called: the trainer changes its parameters itself.
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with GDSWriter(slow / "own", host_bytes_max=0) as writer, writer.guard(optimizer):
        future = started(state, writer)
        writer.wait_sources()
        with torch.no_grad():
            for parameter in parameters:
                parameter.fill_(2.0)
        future.result(LIMIT_S)
        writer.wait_sources()
    assert all(value.eq(1.0).all() for value in load(state, slow / "own").values())


@pytest.mark.parametrize("module", [nn.Embedding, nn.EmbeddingBag])
def test_modules_that_change_parameters_in_forward_are_refused(module: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), module(10, 4, max_norm=1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    writer = GDSWriter(tmp_path)
    with pytest.raises(UnsupportedError, match=r"1: Embedding.* with max_norm"):
        writer.guard(optimizer, model=model)
    assert not optimizer._optimizer_step_pre_hooks
    writer.guard(optimizer, model=nn.Sequential(nn.Embedding(10, 4))).remove()


def train_guarded(path: Path) -> float:
    """FSDP2 and AdamW on two ranks; the save's collectives have a group of their own."""
    torch.manual_seed(dist.get_rank())
    group = dist.new_group(backend="gloo")
    model = nn.Sequential(nn.Linear(1024, 2048, bias=False), nn.Linear(2048, 1024, bias=False))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        torch.autograd.backward(model(torch.rand(2, 1024)).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    expected = {name: local(value).clone() for name, value in model_state.items()}
    with GDSWriter(path, host_bytes_max=2 * MIB) as writer, writer.guard(optimizer, model=model):
        future = started(state, writer, process_group=group)
        step()
        step()
        future.result(LIMIT_S)
        report = writer.report
    dcp_load(state, storage_reader=GDSReader(path))
    for name, value in expected.items():
        assert torch.equal(local(model_state[name]), value), name
    assert report is not None
    return report.direct_bytes


def local(value: Any) -> torch.Tensor:
    return cast(torch.Tensor, value.to_local() if isinstance(value, DTensor) else value)


def test_fsdp_with_a_guarded_step(slow: Path, ranks: Callable[[int], Ranks]) -> None:
    assert min(ranks(2).run(train_guarded, slow / "fsdp")) > 0
