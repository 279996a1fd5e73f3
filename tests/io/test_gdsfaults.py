"""Every fault of the driver, at every call, is the right error or leaves the right bytes.

Method: the calls of a fault-free run are counted; then each of them fails once in every way, and
the simulator says that the fault was reached. Work in streams is deferred, so that a wait that is
missing shows as bytes of another piece. A process is forked while a write is held.
"""

from __future__ import annotations

import errno
import gc
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp_gds.errors import TransferError
from dcp_gds.io.engine import Operation, Transfer
from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine, run_in_child
from tests.gdssim.fault import EVERY, Action, Fault
from tests.gdssim.simulator import Quantity, Simulator

SLOT = 4 << 20
BLOCK = 4096
LENGTH = 2 * SLOT + BLOCK
# What the driver returns, and the errno that comes of it by a write and by a read.
ERRORS = [
    (-5, 0, errno.EIO, errno.EIO),
    (-1, errno.ENOSPC, errno.ENOSPC, errno.EIO),
    (-1, errno.EIO, errno.EIO, errno.EIO),
    (-1, 5027, errno.EIO, errno.EIO),
    (-5010, 0, errno.EIO, errno.EIO),
    (-5036, 0, errno.EIO, errno.EIO),
]
SHORT = (0, 1, 511, BLOCK, BLOCK + 1)


def transfer_faults(simulator: Simulator, path: str) -> None:
    """A failed transfer is an error with its extent; a short one is done again, without a hole."""
    from tests.io.simengine import new_file, sim_engine

    with sim_engine(simulator) as it, new_file(path, length=LENGTH) as file:
        buffer, data = it.random(LENGTH)
        target = it.buffer(bytes(LENGTH))
        for function, operation, place in (
            ("cuFileWrite", Operation.WRITE, buffer),
            ("cuFileRead", Operation.READ, target),
        ):
            simulator.reset()
            assert it.move(operation, file, place.address, LENGTH, 0).error is None
            calls = simulator.calls(function)
            assert calls == 3
            for index in range(calls):
                for result, number, written, read in ERRORS:
                    simulator.reset()
                    simulator.inject(
                        Fault(function=function, skip=index, result=result, error=number)
                    )
                    done = it.move(operation, file, place.address, LENGTH, 0)
                    assert simulator.faults(function) == 1
                    error = done.error
                    assert isinstance(error, TransferError)
                    expected = written if operation is Operation.WRITE else read
                    assert (error.errno, error.filename) == (expected, path)
                    assert (error.offset, error.length) == (0, LENGTH)
                    assert (error.done, done.crc32) == (index * SLOT, None)
                for moved in SHORT:
                    Path(path).write_bytes(data if operation is Operation.READ else bytes(LENGTH))
                    simulator.reset()
                    simulator.inject(Fault(function=function, skip=index, result=moved))
                    done = it.move(operation, file, place.address, LENGTH, 0)
                    assert simulator.faults(function) == 1
                    short = min(moved, BLOCK if index == calls - 1 else SLOT)
                    assert done.error is None
                    assert done.retries == (short < (BLOCK if index == calls - 1 else SLOT))
                    assert done.crc32 == zlib.crc32(data)
                    assert Path(path).read_bytes() == target_bytes(operation, place.read(), data)


def target_bytes(operation: Operation, memory: bytes, data: bytes) -> bytes:
    """What the file has to hold; a read's bytes have to be in the GPU's memory too."""
    assert memory == data, operation
    return data


def lasting_faults(simulator: Simulator, path: str) -> None:
    """A transfer that stays short is an error after three tries."""
    from tests.io.simengine import new_file, sim_engine

    with sim_engine(simulator) as it, new_file(path, length=LENGTH) as file:
        buffer, _ = it.random(LENGTH)
        for function, operation, verb in (
            ("cuFileWrite", Operation.WRITE, "wrote"),
            ("cuFileRead", Operation.READ, "read"),
        ):
            simulator.reset()
            simulator.inject(Fault(function=function, skip=1, count=EVERY, result=BLOCK))
            done = it.move(operation, file, buffer.address, LENGTH, 0)
            assert simulator.faults(function) == 3
            assert isinstance(done.error, TransferError)
            assert (done.error.errno, done.error.done, done.retries) == (errno.EIO, SLOT, 3)
            text = f"cuFile {verb} {BLOCK} of {SLOT} bytes at {SLOT} without an error"
            assert text in str(done.error)


def driver_faults(simulator: Simulator, path: str) -> None:
    """Whatever call of the driver fails in a write and a read, the error is told, once."""
    from tests.io.simengine import new_file, sim_engine

    functions = (
        *("cuCtxPushCurrent_v2", "cuMemcpyDtoDAsync_v2", "cuStreamSynchronize"),
        "cuFileHandleRegister",
    )
    for function in functions:
        index = reached = 0
        while reached == index:
            file_path = f"{path}-{function}-{index}"
            with sim_engine(simulator) as it, new_file(file_path, length=BLOCK) as file:
                buffer, data = it.random(BLOCK)
                simulator.reset()
                fault = Fault(function=function, skip=index, result=719, error=0)
                simulator.inject(fault)
                done = it.write(file, buffer, length=BLOCK)
                hit = simulator.faults(function)
                simulator.reset()
                if not hit:
                    assert done.error is None
                    break
                assert isinstance(done.error, TransferError)
                assert (done.error.errno, done.error.filename) == (errno.EIO, file_path)
                assert it.write(file, buffer, length=BLOCK).error is None
                assert file.path.read_bytes() == data
            index += 1
            reached += 1
        assert index > 0, function


def window_faults(simulator: Simulator, path: str) -> None:
    """With little room the window is smaller; a refusal is an error and leaves nothing."""
    from dcp_gds.errors import UnsupportedError
    from dcp_gds.io.gdswindow import GdsWindow

    del path
    for code, slots in ((5016, 4), (5036, 4), (5043, 4)):
        simulator.inject(Fault(function="cuFileBufRegister", result=code))
        window = GdsWindow(ordinal=0, slots_max=8)
        assert (window.slots, window.memory.length) == (slots, slots * SLOT)
        assert simulator.faults("cuFileBufRegister") == 1
        window.close()
        simulator.reset()
    simulator.limit(Quantity.CUFILE_REGISTERED, bytes_max=3 * SLOT)
    window = GdsWindow(ordinal=0, slots_max=8)
    assert window.slots == 2
    window.close()
    simulator.limit(Quantity.CUFILE_REGISTERED, bytes_max=0)
    for function, result, count, text in (
        ("cuFileBufRegister", 5036, 4, "BAR1 memory is full"),
        ("cuFileBufRegister", 5001, 1, "nvidia-fs driver is not loaded"),
        ("cuMemAlloc_v2", 2, 4, "cuMemAlloc_v2: CUDA error 2"),
        ("cuDevicePrimaryCtxRetain", 2, 1, "GPU 0 cannot be used"),
    ):
        simulator.inject(Fault(function=function, result=result, count=EVERY))
        with pytest.raises(UnsupportedError) as caught:
            GdsWindow(ordinal=0, slots_max=8)
        assert text in str(caught.value)
        assert simulator.faults(function) == count
        simulator.reset()
    for index in range(3):
        simulator.inject(Fault(function="cuStreamCreate", skip=index, result=2))
        with pytest.raises(OSError, match="cuStreamCreate") as failed:
            GdsWindow(ordinal=0, slots_max=3)
        assert failed.value.errno == errno.ENOMEM
        simulator.reset()
    assert simulator.meter(Quantity.CUFILE_REGISTERED).now == 0
    assert simulator.meter(Quantity.DEVICE).now == 0


@pytest.mark.parametrize("test", [transfer_faults, lasting_faults, driver_faults, window_faults])
def test_faults(gdssim: Libraries, tmp_path: Path, test: Callable[[Simulator, str], None]) -> None:
    run_in_child(Machine(libraries=gdssim), test, str(tmp_path / "file"))


def deferred(simulator: Simulator, path: str, drop_wait: bool) -> bool:
    """Whether what was written, and read back, is what the GPU's memory held."""
    from dcp_gds.io.cudadriver import CudaContext
    from tests.io.simengine import new_file, sim_engine

    call = CudaContext.call

    def without_wait(self: CudaContext, function: str, *arguments: object) -> None:
        if function != "cuStreamSynchronize":
            call(self, function, *arguments)

    if drop_wait:
        CudaContext.call = without_wait  # type: ignore[method-assign]
    with sim_engine(simulator, slots_max=1) as it, new_file(path, length=LENGTH) as file:
        buffer, data = it.random(LENGTH)
        it.engine.submit(Transfer(Operation.WRITE, file, buffer.address, LENGTH, 0))
        assert it.engine.drain()[0].error is None
        written = Path(path).read_bytes() == data
        Path(path).write_bytes(data)
        target = it.buffer(bytes(LENGTH))
        it.engine.submit(Transfer(Operation.READ, file, target.address, LENGTH, 0))
        assert it.engine.drain()[0].error is None
        read = target.read() == data
    assert written == read
    return written


@pytest.mark.parametrize("drop_wait", [False, True])
def test_no_stale_byte_is_moved_while_the_copies_are_waited_for(
    gdssim: Libraries, tmp_path: Path, drop_wait: bool
) -> None:
    machine = Machine(libraries=gdssim, deferred=True)
    path = str(tmp_path / "file")
    assert run_in_child(machine, deferred, path, drop_wait) is not drop_wait


def forked(simulator: Simulator, path: str) -> None:
    """A child that was forked during a write finds the engine closed, and ends as it should."""
    from tests.io.simengine import new_file, sim_engine

    with sim_engine(simulator) as it, new_file(path, length=SLOT) as file:
        buffer, data = it.random(SLOT)
        transfer = Transfer(Operation.WRITE, file, buffer.address, SLOT, 0)
        simulator.inject(Fault(function="cuFileWrite", action=Action.HOLD))
        it.engine.submit(transfer)
        simulator.await_held("cuFileWrite")
        child = os.fork()
        if not child:
            status = 1
            try:
                with pytest.raises(RuntimeError, match="forked"):
                    it.engine.submit(transfer)
                assert it.engine.reap() == it.engine.drain() == []
                assert it.engine.in_flight == 0
                it.engine.close()
                it.window.close()
                status = 0
            finally:
                os._exit(status)
        # Not os.waitpid at once: a child that hangs must not keep the write held.
        ended = threading.Thread(target=lambda: statuses.append(os.waitpid(child, 0)[1]))
        statuses: list[int] = []
        ended.start()
        ended.join(60)
        simulator.release()
        assert statuses == [0]
        assert [each.error for each in it.engine.drain()] == [None]
        assert Path(path).read_bytes() == data
        assert simulator.calls("cuFileHandleDeregister") == 0
    assert simulator.calls("cuFileHandleDeregister") == 1


def forgotten(simulator: Simulator, path: str) -> None:
    """A child that was forked while a file was registered forgets it, and cuFile is not told."""
    from dcp_gds.io.gds import GdsFile
    from tests.io.simengine import new_file, sim_engine

    with sim_engine(simulator) as it, new_file(path, length=SLOT) as file:
        with it.window.context.current():
            registered = GdsFile(file.fd, writable=True)
        before = simulator.calls("cuFileHandleDeregister")
        child = os.fork()
        if not child:
            del registered
            gc.collect()
            os._exit(simulator.calls("cuFileHandleDeregister") - before)
        assert os.waitpid(child, 0)[1] == 0
        with it.window.context.current():
            registered.close()
        registered.close()
        assert simulator.calls("cuFileHandleDeregister") == before + 1


def test_a_forked_child_that_forgets_a_file_does_not_tell_cufile(
    gdssim: Libraries, tmp_path: Path
) -> None:
    run_in_child(Machine(libraries=gdssim), forgotten, str(tmp_path / "file"))


def test_a_forked_child_finds_the_engine_closed(gdssim: Libraries, tmp_path: Path) -> None:
    run_in_child(Machine(libraries=gdssim), forked, str(tmp_path / "file"))
