"""kvikio has the names that we call, and raises what we make errors of.

Method: the installed kvikio runs on the simulated driver, which fails as asked; each outcome is the
value that the call returned, or the type and text of what it raised.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine, run_in_child
from tests.gdssim.fault import Action, Fault
from tests.gdssim.memory import SimBuffer, SimGpu
from tests.gdssim.simulator import Quantity, Simulator

LENGTH = 1 << 20
# kvikio's write() does not use cuFile for so few bytes; raw_write has no such threshold.
SMALL = 100
WRITE, READ = "raw_write", "raw_read"

# What the driver returns, its errno, and the end of what kvikio raises for a write and for a read.
# A read's errno is lost: kvikio takes the -1 for an error number.
TRANSFER_ERRORS = [
    (-5, 0, "cuFile error:unknown cufile error", "Input/output error"),
    (-1, errno.ENOSPC, "Unable to write file: No space left on device", "Operation not permitted"),
    (-1, errno.EIO, "Unable to write file: Input/output error", "Operation not permitted"),
    (-5010, 0, "nvidia-fs driver ioctl error", "nvidia-fs driver ioctl error"),
    (-5036, 0, "failed to allocate pinned GPU Memory", "failed to allocate pinned GPU Memory"),
]
HANDLE_ERRORS = [
    (5008, "GPUDirect Storage not supported on current file"),
    (5016, "access beyond maximum pinned size"),
    (5027, "file descriptor is not registered"),
    (5030, "internal error"),
]


def outcome(call: Callable[[], Any]) -> str:
    """What a call returned or raised, as text; kvikio has no error type of its own."""
    try:
        return repr(call())
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def prepared(simulator: Simulator, path: str) -> tuple[SimBuffer, bytes]:
    """A buffer of random bytes, and a file of the same length at `path`."""
    gpu = SimGpu(simulator)
    buffer = gpu.allocate(LENGTH)
    data = bytes(range(256)) * (LENGTH // 256)
    buffer.write(data)
    Path(path).write_bytes(bytes(LENGTH))
    return buffer, data


def transfer(path: str, buffer: SimBuffer, method: str, *, length: int = LENGTH) -> Any:
    """Open the file, and move the buffer's bytes by that method."""
    import kvikio

    with kvikio.CuFile(path, "r+") as file:
        return getattr(file, method)(buffer, length, 0, 0)


def moves(simulator: Simulator, path: str) -> None:
    import kvikio
    import kvikio.cufile_driver
    import kvikio.defaults

    buffer, data = prepared(simulator, path)
    kvikio.memory_register(buffer)
    assert simulator.meter(Quantity.CUFILE_REGISTERED).now == LENGTH
    monitor = kvikio.SummaryMonitor()
    assert transfer(path, buffer, WRITE) == LENGTH
    assert Path(path).read_bytes() == data
    target = buffer.gpu.allocate(LENGTH)
    assert transfer(path, target, READ) == LENGTH
    assert target.read() == data
    used = monitor.get().by_backend
    assert used["GDS"]["bytes_transferred"] == 2 * LENGTH
    assert used["POSIX"]["bytes_transferred"] == 0
    kvikio.memory_deregister(buffer)
    assert simulator.meter(Quantity.CUFILE_REGISTERED).now == 0
    for function, unregistered in (("cuFileWrite", 0), ("cuFileRead", 1)):
        assert simulator.calls(function) == 1
        assert simulator.calls(f"{function}.unaligned") == 0
        assert simulator.calls(f"{function}.unregistered") == unregistered
    assert kvikio.defaults.get("compat_mode") == kvikio.CompatMode.OFF
    assert kvikio.cufile_driver.get("is_gds_available") is True


def test_the_real_kvikio_moves_device_memory_by_cufile(gdssim: Libraries, tmp_path: Path) -> None:
    run_in_child(Machine(libraries=gdssim), moves, str(tmp_path / "file"))


def no_nvidia_fs(simulator: Simulator, path: str) -> None:
    import kvikio.cufile_driver

    assert kvikio.cufile_driver.get("is_gds_available") is False


def test_kvikio_tells_that_nvidia_fs_is_missing(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim, nvfs=False), no_nvidia_fs, "")


def transfer_errors(simulator: Simulator, path: str) -> None:
    buffer, _ = prepared(simulator, path)
    for result, error, write_text, read_text in TRANSFER_ERRORS:
        for function, method, text in (
            ("cuFileWrite", WRITE, write_text),
            ("cuFileRead", READ, read_text),
        ):
            simulator.inject(Fault(function=function, result=result, error=error))
            seen = outcome(lambda method=method: transfer(path, buffer, method))  # type: ignore[misc]
            assert seen.startswith("RuntimeError: ")
            assert seen.endswith(text), (function, result, error, seen)
            assert simulator.faults(function) == 1
            simulator.reset()


def short_transfers(simulator: Simulator, path: str) -> None:
    buffer, data = prepared(simulator, path)
    for moved in (12345, 4096, 0):
        Path(path).write_bytes(bytes(LENGTH))
        simulator.inject(Fault(function="cuFileWrite", result=moved))
        # No error: whoever does not compare the count leaves a hole.
        assert transfer(path, buffer, WRITE) == moved
        assert Path(path).read_bytes() == data[:moved] + bytes(LENGTH - moved)
        simulator.inject(Fault(function="cuFileRead", result=moved))
        assert transfer(path, buffer, READ) == moved


def one_of_several(simulator: Simulator, path: str) -> None:
    buffer, data = prepared(simulator, path)
    for index in range(4):
        simulator.inject(Fault(function="cuFileWrite", skip=index, error=errno.EIO))
        seen = [outcome(lambda: transfer(path, buffer, WRITE)) for _ in range(4)]
        failed = [number for number, each in enumerate(seen) if "Input/output error" in each]
        assert failed == [index]
        assert simulator.faults("cuFileWrite") == 1
        simulator.reset()
    # Each is whole or nothing here: the failed one can be done again.
    assert Path(path).read_bytes() == data


def driver_errors(simulator: Simulator, path: str) -> None:
    import kvikio.cufile_driver

    buffer, _ = prepared(simulator, path)
    simulator.inject(Fault(function="cuFileDriverOpen", result=5001))
    assert "nvidia-fs driver is not loaded" in outcome(kvikio.cufile_driver.driver_open)
    # A CUDA error while it waits for the NULL stream comes before the transfer.
    simulator.inject(Fault(function="cuStreamSynchronize", result=719))
    assert "CUDA error" in outcome(lambda: transfer(path, buffer, WRITE))
    assert simulator.calls("cuFileWrite") == 0


def handle_errors(simulator: Simulator, path: str) -> None:
    buffer, _ = prepared(simulator, path)
    for result, text in HANDLE_ERRORS:
        simulator.inject(Fault(function="cuFileHandleRegister", result=result))
        seen = outcome(lambda: transfer(path, buffer, WRITE))
        assert seen.startswith("RuntimeError: ")
        assert seen.endswith(text)
    assert simulator.faults("cuFileHandleRegister") == len(HANDLE_ERRORS)
    assert simulator.calls("cuFileWrite") == 0


def registration_errors(simulator: Simulator, path: str) -> None:
    import kvikio

    buffer, _ = prepared(simulator, path)
    simulator.limit(Quantity.CUFILE_REGISTERED, bytes_max=LENGTH // 2)
    seen = outcome(lambda: kvikio.memory_register(buffer))
    assert seen.endswith("failed to allocate pinned GPU Memory")
    simulator.limit(Quantity.CUFILE_REGISTERED, bytes_max=0)
    kvikio.memory_register(buffer)
    assert outcome(lambda: kvikio.memory_register(buffer)).endswith("already registered")
    kvikio.memory_deregister(buffer)
    assert outcome(lambda: kvikio.memory_deregister(buffer)).endswith("lookup failure")


def misuse(simulator: Simulator, path: str) -> None:
    import kvikio

    buffer, _ = prepared(simulator, path)
    file = kvikio.CuFile(path, "r+")
    file.close()
    seen = outcome(lambda: file.raw_write(buffer, LENGTH, 0, 0))
    assert seen.endswith("file descriptor is not registered")
    missing = outcome(lambda: kvikio.CuFile(f"{path}.missing", "r+"))
    assert missing.endswith("No such file or directory")
    assert outcome(lambda: kvikio.CuFile(path, "a")).startswith("ValueError: ")
    too_long = outcome(lambda: transfer(path, buffer, WRITE, length=LENGTH + 1))
    assert too_long == "ValueError: Size is greater than the size of the buffer"
    # The end of the file ends a read without an error.
    Path(path).write_bytes(bytes(4096))
    assert transfer(path, buffer, READ) == 4096
    # raw_write takes cuFile however small the transfer is, and aligns nothing.
    simulator.reset()
    assert transfer(path, buffer, WRITE, length=SMALL) == SMALL
    assert simulator.calls("cuFileWrite.unaligned") == 1


@pytest.mark.parametrize(
    "target",
    [
        transfer_errors,
        short_transfers,
        one_of_several,
        driver_errors,
        handle_errors,
        registration_errors,
        misuse,
    ],
)
def test_kvikio_raises_what_we_rely_on(
    gdssim: Libraries, tmp_path: Path, target: Callable[[Simulator, str], None]
) -> None:
    run_in_child(Machine(libraries=gdssim), target, str(tmp_path / "file"))
    # Nor does the process that runs the tests ever load the libraries.
    assert str(gdssim.cuda) not in Path("/proc/self/maps").read_text()


def waits_for_the_null_stream(simulator: Simulator, path: str) -> None:
    buffer, _ = prepared(simulator, path)
    stream = buffer.gpu.new_stream()
    buffer.gpu.fill(buffer.address, value=1, length=LENGTH)
    buffer.gpu.fill(buffer.address, value=2, length=LENGTH, stream=stream)
    assert transfer(path, buffer, WRITE) == LENGTH
    # It waits for the NULL stream of its own accord, and for no other.
    assert Path(path).read_bytes() == b"\1" * LENGTH
    buffer.gpu.wait_stream(stream)
    assert transfer(path, buffer, WRITE) == LENGTH
    assert Path(path).read_bytes() == b"\2" * LENGTH


def test_kvikio_waits_for_the_null_stream_only(gdssim: Libraries, tmp_path: Path) -> None:
    machine = Machine(libraries=gdssim, deferred=True)
    run_in_child(machine, waits_for_the_null_stream, str(tmp_path / "file"))


def test_a_process_whose_driver_open_hangs_can_be_ended(gdssim: Libraries) -> None:
    hang = Fault(function="cuFileDriverOpen", action=Action.HOLD)
    code = "import kvikio.cufile_driver as driver; print('here', flush=True); driver.driver_open()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=Machine(libraries=gdssim, faults=[hang]).variables(),
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert process.poll() is None
        process.kill()


def test_a_driver_open_that_aborts_ends_its_process_only(gdssim: Libraries) -> None:
    abort = Fault(function="cuFileDriverOpen", action=Action.ABORT)
    done = subprocess.run(
        [sys.executable, "-c", "import kvikio.cufile_driver as driver; driver.driver_open()"],
        env=Machine(libraries=gdssim, faults=[abort]).variables(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT


SAVE_ON_CPU = """
import sys
from pathlib import Path
import torch
import torch.distributed.checkpoint as dcp
import dcp_gds
with dcp_gds.GDSWriter(sys.argv[1]) as writer:
    dcp.save({"x": torch.ones(5000)}, storage_writer=writer, no_dist=True)
maps = Path("/proc/self/maps").read_text()
assert "_core" in maps
print([name for name in ("libcuda.so", "libcufile", "kvikio") if name in maps])
"""


def test_a_save_of_host_memory_maps_no_gpu_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVE_ON_CPU, str(tmp_path / "checkpoint")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
