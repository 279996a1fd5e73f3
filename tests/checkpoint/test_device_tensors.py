"""Tensors in GPU memory are saved through pinned slots: no stale byte, few waits, within the pool.

Method: the simulated driver with deferred streams; DCP's own reader compares in another process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dcp_gds.config import STAGING_SLOT_BYTES
from tests.checkpoint.rawbytes import dense_tensor, raw
from tests.checkpoint.stock_reader import Loaded
from tests.checkpoint.storage import save
from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine, run_in_child
from tests.gdssim.simulator import Quantity, Simulator
from tests.io.simdevice import SimDevice
from tests.ranks import EXPECTED_WARNINGS

POOL = 4 << 20
LARGE = {"large": (3 << 18, torch.float32), "odd": (5_000_001, torch.uint8)}
SMALL = {f"small{i}": (100 + i, torch.bfloat16) for i in range(2000)}


def saved(simulator: Simulator, path: Path, shapes: dict[str, tuple[int, torch.dtype]]) -> None:
    device = SimDevice(simulator)
    state = {
        name: device.tensor(dense_tensor((count,), dtype))
        for name, (count, dtype) in shapes.items()
    }
    simulator.reset()
    with device.installed(), warnings.catch_warnings():
        for message in EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        save(dict(state), path, staging_bytes_max=POOL)
    assert 0 < simulator.meter(Quantity.HOST_REGISTERED).peak <= POOL
    # One wait for each slot of the file, and one where all is settled before the footer.
    (file,) = path.glob("*.distcp")
    assert simulator.calls("cuEventSynchronize") <= file.stat().st_size // STAGING_SLOT_BYTES + 2
    assert simulator.calls("cuStreamSynchronize") == 0


@pytest.mark.parametrize("shapes", [LARGE, SMALL, LARGE | SMALL], ids=["large", "small", "both"])
def test_no_byte_is_stale(
    shapes: dict[str, tuple[int, torch.dtype]],
    gdssim: Libraries,
    tmp_path: Path,
    stock_load: Callable[[Path], dict[str, object]],
) -> None:
    run_in_child(Machine(libraries=gdssim, deferred=True), saved, tmp_path, shapes)
    assert stock_load(tmp_path) == {
        name: Loaded(str(dtype), (count,), raw(dense_tensor((count,), dtype)))
        for name, (count, dtype) in shapes.items()
    }
