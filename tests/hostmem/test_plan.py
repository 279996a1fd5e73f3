"""A plan says what a save takes of a host, how long it blocks, and how often to save.

Method: the example that the project began with, numbers worked by hand, and hypothesis for what
holds of every plan.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.interval import daly_interval_s, lost_share, young_interval_s
from dcp_gds.hostmem.plan import Machine, make_plan
from dcp_gds.hostmem.statesize import DTYPES, OPTIMIZERS, bytes_per_parameter

GIB = 1 << 30
GB = 10**9
# Eight H100 and 512 GB of memory a node, 70 billion parameters in bf16 with AdamW.
NODE = Machine(
    world_size=16, gpus_per_node=8, host_bytes=512 * GB, drives=8, drive_bytes_per_s=6_250_000_000
)
STATE = 70 * GB * bytes_per_parameter("bf16", "adamw")


def test_the_example_that_the_project_began_with() -> None:
    """Each node holds 490 GB, and one stock save takes over 80% of its 512 GB."""
    plan = make_plan(STATE, NODE)
    assert plan.state_bytes == 980 * GB
    assert plan.bytes_per_node == 490 * GB
    stock, capped, streamed = plan.ways
    assert 0.8 < stock.host_share < 1
    assert not stock.within_ceiling
    assert capped.host_bytes == plan.ceiling_bytes == 204_800_000_000
    assert capped.within_ceiling
    assert streamed.host_bytes == 512 << 20
    # Fifty gigabytes a second, as the example has it.
    assert plan.write_bytes_per_s == 50 * GB
    assert streamed.durable_s == pytest.approx(9.8)
    assert capped.blocked_s == pytest.approx((490 - 204.8) / 50)
    assert stock.blocked_s == pytest.approx(61.25 / 25)
    assert stock.durable_s == pytest.approx(61.25 / 25 + 9.8)
    assert "above the ceiling of 40% of the host" in plan.verdict


@pytest.mark.parametrize("node_bytes", [640 * GB, 1100 * GB])
def test_full_gpus_do_not_fit_at_all(node_bytes: int) -> None:
    machine = dataclasses.replace(NODE, world_size=8)
    plan = make_plan(node_bytes, machine)
    assert plan.ways[0].host_share > 1
    assert "past its end" in plan.verdict


def test_a_state_that_fits() -> None:
    plan = make_plan(100 * GB, dataclasses.replace(NODE, world_size=8))
    stock, capped, _ = plan.ways
    assert stock.host_bytes == 100 * GB + int(412 * GB * 0.2)
    assert stock.within_ceiling
    # Everything fits the staging, so only the copy blocks.
    assert capped.blocked_s == stock.blocked_s
    assert "fits below the ceiling" in plan.verdict


def test_a_rank_writes_to_one_drive() -> None:
    machine = dataclasses.replace(NODE, world_size=2)
    assert machine.write_bytes_per_s == 2 * machine.drive_bytes_per_s
    machine = dataclasses.replace(NODE, drives=3)
    assert machine.write_bytes_per_s == 3 * machine.drive_bytes_per_s


def test_intervals() -> None:
    assert young_interval_s(60, mtbf_s=12 * 3600) == pytest.approx(2276.8, abs=0.1)
    assert daly_interval_s(60, mtbf_s=12 * 3600) == pytest.approx(2237.0, abs=0.1)
    assert daly_interval_s(100, mtbf_s=40) == 40
    plan = make_plan(STATE, dataclasses.replace(NODE, mtbf_s=12 * 3600.0))
    assert plan.young_s == young_interval_s(plan.ways[0].blocked_s, mtbf_s=12 * 3600)
    for way in plan.ways:
        assert way.interval_s is not None
        assert way.interval_s >= way.durable_s
    assert make_plan(STATE, NODE).ways[0].interval_s is None


@given(blocked=st.floats(0.01, 100), hours=st.floats(1, 1000))
def test_no_other_interval_loses_less(blocked: float, hours: float) -> None:
    mtbf = hours * 3600
    best = daly_interval_s(blocked, mtbf_s=mtbf)
    least = lost_share(best, blocked_s=blocked, mtbf_s=mtbf)
    for other in (best / 2, best * 2):
        assert lost_share(other, blocked_s=blocked, mtbf_s=mtbf) > least


@given(
    state=st.integers(1, 10**15),
    world=st.integers(1, 10_000),
    gpus=st.integers(1, 16),
    host=st.integers(GIB, 4096 * GIB),
    drives=st.integers(1, 32),
)
def test_what_holds_of_every_plan(
    state: int, world: int, gpus: int, host: int, drives: int
) -> None:
    machine = Machine(
        world_size=world,
        gpus_per_node=gpus,
        host_bytes=host,
        drives=drives,
        drive_bytes_per_s=5 * GB,
    )
    plan = make_plan(state, machine)
    stock, capped, streamed = plan.ways
    assert plan.bytes_per_rank * world >= state
    assert capped.within_ceiling
    assert streamed.host_bytes <= plan.bytes_per_node <= stock.host_bytes
    assert capped.durable_s >= capped.blocked_s or capped.durable_s == pytest.approx(
        capped.blocked_s
    )


@pytest.mark.parametrize(
    ("dtype", "optimizer", "master", "expected"),
    [
        ("bf16", "adamw", None, 14),
        ("BF16", "AdamW", False, 10),
        ("fp32", "adamw", None, 12),
        ("fp32", "adamw", True, 16),
        ("bf16", "none", None, 2),
        ("fp8", "adam", None, 13),
        ("bf16", "adam8bit", None, 8),
        ("float32", "sgd", None, 4),
    ],
)
def test_bytes_of_a_parameter(
    dtype: str, optimizer: str, master: bool | None, expected: int
) -> None:
    assert bytes_per_parameter(dtype, optimizer, master=master) == expected


@pytest.mark.parametrize(("dtype", "optimizer"), [("int3", "adamw"), ("bf16", "magic"), ("", "")])
def test_unknown_names(dtype: str, optimizer: str) -> None:
    with pytest.raises(ConfigError, match="expected one of"):
        bytes_per_parameter(dtype, optimizer)
    assert all(name == name.lower() for name in (*DTYPES, *OPTIMIZERS))


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 0},
        {"gpus_per_node": 0},
        {"host_bytes": 0},
        {"drives": 0},
        {"drives": -1},
        {"drive_bytes_per_s": 0},
        {"ceiling_share": 0.0},
        {"ceiling_share": 1.1},
        {"mtbf_s": 0.0},
        {"mtbf_s": -1.0},
    ],
)
def test_machines_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        dataclasses.replace(NODE, **wrong)


def test_no_state() -> None:
    with pytest.raises(ConfigError, match="0 bytes"):
        make_plan(0, NODE)
