"""The scope is one of three sizes, bent by options and by what the machine has.

Method: memory and room of the drive as a test makes them up.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dcp_gds.benchmark import scope as scope_module
from dcp_gds.benchmark.scope import Scope, choose_scope
from dcp_gds.benchmark.sweep import Grid
from dcp_gds.benchmark.target import Target
from dcp_gds.errors import ConfigError

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """60 GiB of memory are available, and 1 TiB is free on the drive."""
    made_up = SimpleNamespace(available=60 * GIB, free=TIB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: made_up)
    monkeypatch.setattr("shutil.disk_usage", lambda _: made_up)
    return made_up


def choose(
    *,
    quick: bool = False,
    thorough: bool = False,
    length: int | None = None,
    rounds: int | None = None,
) -> Scope:
    target = Target(Path("/drive"), "ext4", direct=True, reason="")
    return choose_scope(target, quick=quick, thorough=thorough, length=length, rounds=rounds)


def test_the_usual_one() -> None:
    full = Grid(GIB, (MIB, 4 * MIB, 8 * MIB), (4, 8, 32))
    assert choose() == Scope(4 * GIB, 10 * GIB, 7, full, background=True)
    assert choose().disk_bytes == 13 * GIB


def test_a_quick_one() -> None:
    quick = Grid(256 * MIB, (MIB, 8 * MIB), (4, 16))
    assert choose(quick=True) == Scope(512 * MIB, 10 * GIB, 3, quick, background=False)
    assert choose(quick=True).disk_bytes == 1792 * MIB


def test_a_thorough_one_passes_a_drives_cache(machine: SimpleNamespace) -> None:
    # Stock's stager would copy 64 GiB of 60.
    assert choose(thorough=True) == Scope(64 * GIB, 10 * GIB, 7, Grid.full(), background=False)
    # Three copies and what is beside them fit.
    assert choose(thorough=True).disk_bytes == 200 * GIB
    # A sixth of 100.9 GiB is 16.8166 GiB: 134 times 128 MiB.
    machine.free = int(100.9 * GIB)
    assert choose(thorough=True).length == 134 * 128 * MIB
    assert choose(thorough=True).background
    machine.free = 0
    assert choose(thorough=True).length == 128 * MIB


def test_options_come_first() -> None:
    assert (choose(quick=True, rounds=1).rounds, choose(rounds=9).rounds) == (1, 9)
    assert choose(thorough=True, length=128 * MIB).length == 128 * MIB
    assert choose(quick=True, length=GIB).grid == Grid.quick()


def test_asynchronous_saves_need_memory_for_stocks_copy(machine: SimpleNamespace) -> None:
    machine.available = 12 * GIB
    assert not choose().background
    assert choose(length=4 * GIB - 128 * MIB).background
    assert choose().memory_bytes == 2 * GIB


@pytest.mark.parametrize("length", [-1, 0, 1, 64 * MIB, 128 * MIB - 1, 200 * MIB])
def test_a_size_that_blocks_do_not_divide_is_refused(length: int) -> None:
    with pytest.raises(ConfigError, match=f"--size is {length} bytes; expected .* of 128 MiB"):
        choose(length=length)


@pytest.mark.parametrize("rounds", [0, -3])
def test_no_rounds_are_refused(rounds: int) -> None:
    with pytest.raises(ConfigError, match=f"--rounds is {rounds}; expected at least 1"):
        choose(rounds=rounds)


def test_two_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="--quick and --thorough exclude each other"):
        choose(quick=True, thorough=True)


def test_blocks_and_tensors_divide_every_length() -> None:
    for grid in (Grid.quick(), Grid.full()):
        for block_bytes in grid.block_bytes:
            assert grid.length % block_bytes == scope_module.LENGTH_UNIT % block_bytes == 0
    assert scope_module.LENGTH_UNIT % (4 * scope_module.TENSORS) == 0
