"""The simulated driver does to memory, contexts and calls what a GPU's driver does.

Method: each test runs a function in a child process that has the libraries loaded, through the same
calls that kvikio makes.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading

import pytest

from tests.gdssim.build import Libraries
from tests.gdssim.child import ChildError, Machine, run_in_child
from tests.gdssim.fault import EVERY, Action, Fault
from tests.gdssim.memory import SimGpu
from tests.gdssim.simulator import Quantity, Simulator

CU_NO_MEMORY = 2
CU_INVALID_CONTEXT = 201
CU_ALREADY_REGISTERED = 712
CU_NOT_REGISTERED = 713
PINNING_FAILED = 5036
RANGE_SIZE = 12
ORDINAL = 9


def two_devices(simulator: Simulator) -> None:
    first, second = SimGpu(simulator), SimGpu(simulator, ordinal=1)
    here, there = first.allocate(8192), second.allocate(8192)
    here.write(b"a" * 8192)
    second.copy(here.address, target=there.address, length=8192)
    assert there.read() == b"a" * 8192
    for buffer, ordinal in ((here, 0), (there, 1)):
        value = ctypes.c_int(-1)
        address = ctypes.c_uint64(buffer.address + 5)
        simulator.check("cuPointerGetAttribute", ctypes.byref(value), ORDINAL, address)
        assert value.value == ordinal
    size, base = ctypes.c_size_t(), ctypes.c_uint64()
    simulator.check(
        "cuMemGetAddressRange_v2",
        ctypes.byref(base),
        ctypes.byref(size),
        ctypes.c_uint64(there.address + 8191),
    )
    assert (base.value, size.value) == (there.address, 8192)
    assert {call.device for call in simulator.records("cuMemAlloc_v2")} == {0, 1}


def test_there_are_several_devices(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim, devices=2), two_devices)


def touch(simulator: Simulator) -> None:
    ctypes.string_at(SimGpu(simulator).allocate(4096).address, 1)


def test_the_cpu_cannot_touch_device_memory(gdssim: Libraries) -> None:
    with pytest.raises(ChildError, match=f"exit status -{signal.SIGSEGV.value}"):
        run_in_child(Machine(libraries=gdssim), touch)


def allocations(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    buffers = [gpu.allocate(length) for length in (1, 1000, 4096, 3 << 20)]
    assert all(buffer.address % 512 == 0 for buffer in buffers)
    assert buffers[-1].address % (2 << 20) == 0
    assert simulator.meter(Quantity.DEVICE).now == 5097 + (3 << 20)
    buffers[1].free()
    assert gpu.allocate(900).address == buffers[1].address
    with pytest.raises(MemoryError):
        gpu.allocate(1 << 30)
    simulator.limit(Quantity.DEVICE, bytes_max=4 << 20)
    with pytest.raises(MemoryError):
        gpu.allocate(1 << 20)
    no_context = simulator.cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1))
    assert no_context == CU_INVALID_CONTEXT


def test_memory_is_allocated_and_limited(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim, arena_mib=64), allocations)


def host_registration(simulator: Simulator) -> None:
    area = mmap.mmap(-1, 1 << 20)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))

    def register(offset: int, length: int) -> int:
        address = ctypes.c_void_p(start + offset)
        return int(simulator.cuda.cuMemHostRegister_v2(address, ctypes.c_size_t(length), 0))

    assert register(0, 4096) == register(8192, 4096) == 0
    assert register(4096, 8192) == CU_ALREADY_REGISTERED
    assert simulator.meter(Quantity.HOST_REGISTERED).now == 8192
    simulator.limit(Quantity.HOST_REGISTERED, bytes_max=12288)
    assert register(16384, 8192) == CU_NO_MEMORY
    simulator.check("cuMemHostUnregister", ctypes.c_void_p(start))
    assert simulator.cuda.cuMemHostUnregister(ctypes.c_void_p(start)) == CU_NOT_REGISTERED
    assert simulator.meter(Quantity.HOST_REGISTERED).now == 4096
    assert simulator.meter(Quantity.HOST_REGISTERED).peak == 8192


def host_allocation(simulator: Simulator) -> None:
    pointer = ctypes.c_void_p()
    simulator.check("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(5000))
    assert simulator.meter(Quantity.HOST_ALLOCATED).now == 5000
    simulator.check("cuMemFreeHost", pointer)
    assert simulator.meter(Quantity.HOST_ALLOCATED).now == 0
    simulator.inject(Fault(function="cuMemAllocHost_v2", result=CU_NO_MEMORY))
    refused = simulator.cuda.cuMemAllocHost_v2(ctypes.byref(pointer), ctypes.c_size_t(5000))
    assert refused == CU_NO_MEMORY


@pytest.mark.parametrize("target", [host_registration, host_allocation])
def test_pinned_host_memory_is_counted_and_refused(gdssim: Libraries, target: object) -> None:
    assert callable(target)
    run_in_child(Machine(libraries=gdssim), target)


def two_contexts(simulator: Simulator) -> None:
    first, second = SimGpu(simulator), SimGpu(simulator, ordinal=1)
    device = ctypes.c_int()
    with first.current():
        with second.current():
            simulator.check("cuCtxGetDevice", ctypes.byref(device))
            assert device.value == 1
        simulator.check("cuCtxGetDevice", ctypes.byref(device))
        assert device.value == 0
        seen: list[int] = []
        thread = threading.Thread(
            target=lambda: seen.append(simulator.cuda.cuCtxGetDevice(ctypes.byref(device)))
        )
        thread.start()
        thread.join()
    # A context is current in one thread only.
    assert seen == [CU_INVALID_CONTEXT]
    calls = simulator.records("cuCtxGetDevice")
    assert [call.device for call in calls] == [1, 0, -1]
    assert calls[0].thread == calls[1].thread != calls[2].thread


def test_each_thread_has_its_stack_of_contexts(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim, devices=2), two_contexts)


def faults(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    simulator.inject(Fault(function="cuMemAlloc_v2", skip=1, count=2, result=CU_NO_MEMORY))
    outcomes = []
    for _ in range(4):
        try:
            gpu.allocate(512)
        except MemoryError:
            outcomes.append("refused")
        else:
            outcomes.append("given")
    assert outcomes == ["given", "refused", "refused", "given"]
    assert simulator.calls("cuMemAlloc_v2") == 4
    assert simulator.faults("cuMemAlloc_v2") == 2
    simulator.inject(Fault(function="cuMemAlloc_v2", count=EVERY, result=CU_NO_MEMORY))
    simulator.reset()
    gpu.allocate(512)
    assert simulator.calls("cuMemAlloc_v2") == 1


def held(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    simulator.inject(Fault(function="cuMemAlloc_v2", action=Action.HOLD))
    thread = threading.Thread(target=gpu.allocate, args=(512,))
    thread.start()
    simulator.await_held("cuMemAlloc_v2")
    assert thread.is_alive()
    assert simulator.meter(Quantity.DEVICE).now == 0
    simulator.release()
    thread.join()
    assert simulator.meter(Quantity.DEVICE).now == 512


@pytest.mark.parametrize("target", [faults, held])
def test_faults_act_where_they_were_asked_for(gdssim: Libraries, target: object) -> None:
    assert callable(target)
    run_in_child(Machine(libraries=gdssim), target)


def test_a_fault_from_the_environment_acts_from_the_start(gdssim: Libraries) -> None:
    abort = Fault(function="cuCtxPushCurrent_v2", skip=1, action=Action.ABORT)
    with pytest.raises(ChildError, match=f"exit status -{signal.SIGABRT.value}"):
        run_in_child(Machine(libraries=gdssim, devices=2, faults=[abort]), two_contexts)


def cufile_registration(simulator: Simulator) -> None:
    gpu = SimGpu(simulator)
    buffer = gpu.allocate(4 << 20)
    simulator.limit(Quantity.CUFILE_REGISTERED, bytes_max=3 << 20)
    simulator.cufile.cuFileBufRegister.restype = ctypes.c_uint64

    def register(start: int, length: int) -> int:
        address = ctypes.c_void_p(buffer.address + start)
        status = simulator.cufile.cuFileBufRegister(address, ctypes.c_size_t(length), 0)
        return int(status) & 0xFFFFFFFF

    assert register(0, 2 << 20) == 0
    assert register(2 << 20, 2 << 20) == PINNING_FAILED
    assert register(2 << 20, 1 << 20) == 0
    assert simulator.meter(Quantity.CUFILE_REGISTERED).now == 3 << 20
    simulator.cufile.cuFileBufDeregister(ctypes.c_void_p(buffer.address))
    assert simulator.meter(Quantity.CUFILE_REGISTERED).now == 1 << 20


def test_registration_for_cufile_has_a_limit(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim), cufile_registration)
