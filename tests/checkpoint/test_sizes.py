"""Every size around a boundary comes back from and into every 64-byte address offset of a page.

Method: one checkpoint holds a tensor for each pair of size and address; it is loaded into memory
at other addresses, with canaries on both sides, by both engines and by DCP's own reader.
"""

from __future__ import annotations

import mmap
import random
from pathlib import Path

import pytest
import torch

from dcp_gds import GDSReader, GDSWriter
from tests.checkpoint.rawbytes import dense_tensor, raw
from tests.checkpoint.storage import STOCK, dcp_load, dcp_save, load

PAGE = 4096
ADDRESSES = range(0, PAGE, 64)
TRANSFER = 64 << 10
CANARY = 0x5C
SIZES = [
    *(0, 1, 63, 64, 65),
    *(PAGE - 1, PAGE, PAGE + 1),
    *(2 * PAGE - 1, 2 * PAGE, 2 * PAGE + 1),
    *(TRANSFER - 1, TRANSFER, TRANSFER + 1),
    2 * TRANSFER + 3,
]


class Memory:
    """Page-aligned memory that holds one tensor at a chosen offset, and canaries around it."""

    def __init__(self, length: int, *, address: int) -> None:
        self._address, self._length = address, length
        self._map = mmap.mmap(-1, PAGE + address + length + PAGE)
        self._map.write(bytes([CANARY]) * len(self._map))
        # frombuffer's storage is exactly these bytes, as that of an ordinary tensor is.
        self.tensor = (
            torch.frombuffer(self._map, dtype=torch.uint8, count=length, offset=PAGE + address)
            if length
            else torch.empty(0, dtype=torch.uint8)
        )

    def intact(self) -> bool:
        """Whether no byte outside the tensor was written."""
        before = self._map[: PAGE + self._address]
        after = self._map[PAGE + self._address + self._length :]
        return set(before + after) == {CANARY}


def memories(size: int, *, seed: int) -> dict[str, Memory]:
    """One for each address offset, in an order of its own: sources meet targets elsewhere."""
    addresses = list(ADDRESSES)
    random.Random(seed).shuffle(addresses)
    return {f"{n:02}": Memory(size, address=address) for n, address in enumerate(addresses)}


def sources(size: int) -> dict[str, Memory]:
    """Memories whose tensors hold random bytes, another row for each address."""
    made = memories(size, seed=size)
    for number, memory in enumerate(made.values()):
        memory.tensor.copy_(dense_tensor((size,), torch.uint8, seed=number))
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("engine", ["direct", "buffered"])
def test_every_address(engine: str, size: int, tmp_path: Path) -> None:
    saved = sources(size)
    expected = {name: raw(memory.tensor) for name, memory in saved.items()}
    with GDSWriter(tmp_path, engine=engine, transfer_bytes=TRANSFER) as writer:
        state = {name: memory.tensor for name, memory in saved.items()}
        dcp_save(state, storage_writer=writer, no_dist=True)
    for verify in (True, False):
        targets = memories(size, seed=size + 1)
        with GDSReader(tmp_path, engine=engine, transfer_bytes=TRANSFER, verify=verify) as reader:
            state = {name: memory.tensor for name, memory in targets.items()}
            dcp_load(state, storage_reader=reader, no_dist=True)
        assert {name: raw(memory.tensor) for name, memory in targets.items()} == expected
        assert all(memory.intact() for memory in targets.values())
    by_stock = {name: torch.zeros(size, dtype=torch.uint8) for name in saved}
    load(dict(by_stock), tmp_path, STOCK)
    assert {name: raw(tensor) for name, tensor in by_stock.items()} == expected


@pytest.mark.parametrize("engine", ["direct", "buffered"])
def test_all_sizes_in_one_checkpoint(engine: str, tmp_path: Path) -> None:
    """Sizes side by side in one file, saved with one engine and loaded with the other."""
    saved = {
        str(size): Memory(size, address=address)
        for size, address in zip(SIZES, ADDRESSES, strict=False)
    }
    for size, memory in zip(SIZES, saved.values(), strict=True):
        memory.tensor.copy_(dense_tensor((size,), torch.uint8))
    other = "buffered" if engine == "direct" else "direct"
    with GDSWriter(tmp_path, engine=engine, transfer_bytes=TRANSFER) as writer:
        state = {name: memory.tensor for name, memory in saved.items()}
        dcp_save(state, storage_writer=writer, no_dist=True)
    targets = {name: Memory(int(name), address=PAGE - 64) for name in saved}
    with GDSReader(tmp_path, engine=other, transfer_bytes=TRANSFER) as reader:
        state = {name: memory.tensor for name, memory in targets.items()}
        dcp_load(state, storage_reader=reader, no_dist=True)
    assert all(raw(targets[name].tensor) == raw(saved[name].tensor) for name in saved)
    assert all(memory.intact() for memory in targets.values())


def test_an_aligned_body_moves_without_a_copy(tmp_path: Path) -> None:
    """Ordinary tensors of many blocks need staging for their edges only."""
    state = {str(n): torch.full((4 << 20,), n, dtype=torch.uint8) for n in range(8)}
    with GDSWriter(tmp_path, engine="direct") as writer:
        dcp_save(dict(state), storage_writer=writer, no_dist=True)
        report = writer.report
    assert report is not None
    assert report.staging_bytes_peak <= 16 << 20
    assert report.bytes_by_engine["direct"] < 33 << 20
