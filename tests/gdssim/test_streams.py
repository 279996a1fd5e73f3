"""With deferred streams, bytes arrive when something has waited for them, and not before.

Method: a fill is queued, and the buffer is copied out by another stream before and after each kind
of wait; the stale bytes have to show.
"""

from __future__ import annotations

import pytest

from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine, run_in_child
from tests.gdssim.memory import SimBuffer, SimGpu
from tests.gdssim.simulator import Simulator

LENGTH = 4096
OLD, NEW = b"\0" * LENGTH, b"\1" * LENGTH


def filled(gpu: SimGpu, stream: int) -> SimBuffer:
    """A buffer whose fill with ones is queued in the stream."""
    buffer = gpu.allocate(LENGTH)
    buffer.write(OLD)
    gpu.fill(buffer.address, value=1, length=LENGTH, stream=stream)
    return buffer


def seen(gpu: SimGpu, buffer: SimBuffer) -> bytes:
    """Bytes that a stream of its own reads now, without waiting for any other."""
    stream = gpu.new_stream()
    target = gpu.allocate(LENGTH)
    gpu.copy(buffer.address, target=target.address, length=LENGTH, stream=stream)
    gpu.wait_stream(stream)
    return target.read()


def waits(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    stream, other = gpu.new_stream(), gpu.new_stream()
    buffer = filled(gpu, stream)
    assert seen(gpu, buffer) == OLD
    gpu.wait_stream(stream)
    assert seen(gpu, buffer) == NEW

    buffer = filled(gpu, stream)
    event = gpu.record_event(stream)
    gpu.wait_stream(other)
    assert seen(gpu, buffer) == OLD
    gpu.wait_event(event)
    assert seen(gpu, buffer) == NEW

    buffer = filled(gpu, stream)
    gpu.stream_waits(other, event=gpu.record_event(stream))
    assert seen(gpu, buffer) == OLD
    gpu.wait_stream(other)
    assert seen(gpu, buffer) == NEW


def event_stands_where_it_was_recorded(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    stream = gpu.new_stream()
    before = filled(gpu, stream)
    event = gpu.record_event(stream)
    after = filled(gpu, stream)
    gpu.wait_event(event)
    assert (seen(gpu, before), seen(gpu, after)) == (NEW, OLD)


def null_stream(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    blocking, free = gpu.new_stream(blocking=True), gpu.new_stream()
    first, second = gpu.allocate(LENGTH), gpu.allocate(LENGTH)
    for buffer, stream in ((first, blocking), (second, free)):
        gpu.fill(buffer.address, value=1, length=LENGTH, stream=stream)
    gpu.wait_stream(0)
    # It waits for blocking streams, and not for the others.
    assert (seen(gpu, first), seen(gpu, second)) == (NEW, OLD)
    gpu.fill(first.address, value=2, length=LENGTH)
    gpu.copy(first.address, target=second.address, length=LENGTH, stream=blocking)
    gpu.wait_stream(blocking)
    assert seen(gpu, second) == b"\2" * LENGTH


def query(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    stream = gpu.new_stream()
    buffer = filled(gpu, stream)
    event = gpu.record_event(stream)
    assert [gpu.is_done(event), gpu.is_done(event)] == [False, True]
    assert seen(gpu, buffer) == NEW


def other_device(simulator: Simulator) -> None:
    gpu, other = SimGpu(simulator), SimGpu(simulator, ordinal=1)
    buffer = gpu.allocate(LENGTH)
    gpu.fill(buffer.address, value=1, length=LENGTH)
    other.wait_stream(0)
    # Each device has a NULL stream of its own.
    assert seen(gpu, buffer) == OLD
    gpu.wait_stream(0)
    assert seen(gpu, buffer) == NEW


@pytest.mark.parametrize(
    "target", [waits, event_stands_where_it_was_recorded, null_stream, query, other_device]
)
def test_work_waits_for_a_wait(gdssim: Libraries, target: object) -> None:
    assert callable(target)
    run_in_child(Machine(libraries=gdssim, devices=2, deferred=True), target)


def at_once(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    assert seen(gpu, filled(gpu, gpu.new_stream())) == NEW


def test_work_runs_at_once_unless_deferred(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim), at_once)
