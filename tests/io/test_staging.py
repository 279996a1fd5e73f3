"""Staging pool: slots are aligned, warm, bounded and reused, and go with the last view of them.

Method: the kernel's own account of the slots' mappings in smaps.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import pytest

from dcp_gds.io.staging import Slot, StagingPool
from tests.memorymap import mapping_at

MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[StagingPool]:
    pool = StagingPool(slot_bytes=MIB, bytes_max=3 * MIB + MIB // 2)
    yield pool
    pool.close()


def acquired(pool: StagingPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def test_slot_is_page_aligned_and_its_view_is_its_memory(pool: StagingPool) -> None:
    slot = acquired(pool)
    assert slot.address % mmap.PAGESIZE == 0
    assert (slot.length, slot.view.nbytes, slot.view.format) == (MIB, MIB, "B")
    slot.view[-3:] = b"end"
    assert ctypes.string_at(slot.address + MIB - 3, 3) == b"end"


def test_slot_is_in_memory_before_its_first_use_and_not_given_to_children(
    pool: StagingPool,
) -> None:
    mapping = mapping_at(acquired(pool).address)
    assert mapping is not None
    assert mapping.resident_bytes >= MIB
    assert "dc" in mapping.flags


def test_no_more_slots_than_the_bound_allows_and_none_before_they_are_needed(
    pool: StagingPool,
) -> None:
    assert pool.peak_bytes == 0
    slots = []
    for count in (1, 2, 3):
        slots.append(acquired(pool))
        assert pool.peak_bytes == count * MIB
    assert pool.acquire() is None
    assert len({slot.address for slot in slots}) == 3
    pool.release(slots[1])
    assert acquired(pool) is slots[1]
    assert pool.acquire() is None
    assert pool.peak_bytes == 3 * MIB


def test_released_slot_is_used_again_before_a_new_one_is_made(pool: StagingPool) -> None:
    first, second = acquired(pool), acquired(pool)
    pool.release(first)
    pool.release(second)
    assert [acquired(pool), acquired(pool)] == [second, first]
    assert pool.peak_bytes == 2 * MIB


def test_slot_cannot_be_released_twice_or_to_another_pool(pool: StagingPool) -> None:
    slot = acquired(pool)
    other = StagingPool(slot_bytes=MIB, bytes_max=MIB)
    with pytest.raises(AssertionError):
        other.release(slot)
    pool.release(slot)
    with pytest.raises(AssertionError):
        pool.release(slot)
    other.close()


def test_memory_goes_with_the_pool_but_never_from_under_a_view() -> None:
    pool = StagingPool(slot_bytes=MIB, bytes_max=2 * MIB)
    free, taken = acquired(pool), acquired(pool)
    pool.release(free)
    addresses = free.address, taken.address
    part = taken.view[10:20]
    del free, taken
    pool.close()
    part[:] = b"0123456789"
    assert ctypes.string_at(addresses[1] + 10, 10) == b"0123456789"
    assert mapping_at(addresses[0]) is None
    del part
    assert mapping_at(addresses[1]) is None
    pool.close()


@pytest.mark.parametrize(
    ("slot_bytes", "bytes_max"), [(mmap.PAGESIZE + 1, MIB), (MIB, MIB - 1), (0, MIB)]
)
def test_slots_are_whole_pages_and_at_least_one_fits(slot_bytes: int, bytes_max: int) -> None:
    with pytest.raises(AssertionError):
        StagingPool(slot_bytes=slot_bytes, bytes_max=bytes_max)
