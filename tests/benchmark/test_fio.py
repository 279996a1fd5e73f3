"""Fio is found or not, and whatever it prints is a figure or an error that names it.

Method: stand-ins that print, fail and hang; the real one for what only it can tell.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from dcp_gds.benchmark import fio as fio_module
from dcp_gds.benchmark.fio import Fio, find_fio
from dcp_gds.benchmark.setting import Setting
from dcp_gds.errors import StorageFullError, TransferError
from tests.benchmark.standin import FIGURES, install, only_on_path, printing
from tests.filesystems import missing

MIB = 1 << 20
LIBAIO = Setting("libaio", MIB, 4)
SLOW_FSYNC = """
#include <sys/syscall.h>
#include <unistd.h>
extern "C" int fsync(int file) {
    sleep(1);
    return static_cast<int>(syscall(SYS_fsync, file));
}
"""


@pytest.fixture
def real() -> Fio:
    found = find_fio(gpu=False)
    if found is None:
        missing("fio")
    return found


def standin(tmp_path: Path, job: str) -> Fio:
    return Fio(str(install(tmp_path / "bin", job=job) / "fio"), "fio-0", ("libaio",))


def write(fio: Fio, directory: Path, *, setting: Setting = LIBAIO) -> None:
    fio.write(directory / "file", setting, length=MIB, direct=True)


def test_it_is_found_with_the_engines_that_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_path(monkeypatch, install(tmp_path))
    assert find_fio(gpu=False) == Fio(
        str(tmp_path / "fio"), "fio-0.stand-in", ("io_uring", "libaio")
    )
    assert find_fio(gpu=True) == find_fio(gpu=False)


def test_its_engine_for_gpus_is_tried_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_path(monkeypatch, install(tmp_path, engines="libcufile libaio"))
    with_gpu, without = find_fio(gpu=True), find_fio(gpu=False)
    assert with_gpu is not None
    assert with_gpu.engines == ("libaio", "libcufile/cufile", "libcufile/posix")
    assert without is not None
    assert without.engines == ("libaio",)


def test_it_is_found_by_a_relative_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "bin", job=printing(FIGURES))
    monkeypatch.chdir(tmp_path)
    only_on_path(monkeypatch, Path("bin"))
    found = find_fio(gpu=False)
    assert found is not None
    (tmp_path / "data").mkdir()
    write(found, tmp_path / "data")


def test_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_on_path(monkeypatch, tmp_path)
    assert find_fio(gpu=False) is None


@pytest.mark.parametrize("text", ["#!/nowhere/sh\n", "\x7fELF", "#!/bin/sh\nexec /bin/sleep 60\n"])
def test_one_that_cannot_be_run_has_no_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    program = install(tmp_path) / "fio"
    program.write_text(text)
    only_on_path(monkeypatch, tmp_path)
    monkeypatch.setattr(fio_module, "START_S_MAX", 0.2)
    assert find_fio(gpu=False) == Fio(str(program), "", ())


def test_its_figures(tmp_path: Path) -> None:
    fio = standin(tmp_path, printing(FIGURES))
    moved = fio.write(tmp_path / "file", LIBAIO, length=MIB, direct=True)
    assert moved.gb_per_s == pytest.approx(MIB / 0.25 / 1e9)
    # 40% of 250 ms; of the rest of the machine it says nothing.
    assert moved.clocks.cpu_s == pytest.approx(0.1)
    assert moved.clocks.machine_cpu_s is None


def test_its_arguments(tmp_path: Path) -> None:
    fio = standin(tmp_path, f'echo "$PWD $@" >> {tmp_path}/said\n{printing(FIGURES)}')
    (tmp_path / "a:b").mkdir()
    fio.write(tmp_path / "a:b" / "file", LIBAIO, length=MIB, direct=True)
    fio.read(
        tmp_path / "a:b" / "file", Setting("libcufile/posix", 4096, 1), length=MIB, direct=False
    )
    written, read = (tmp_path / "said").read_text().splitlines()
    assert written == (
        f"{tmp_path}/a:b --name=bench --thread --filename=file --rw=write --bs=1048576 --iodepth=4"
        " --size=1048576 --direct=1 --ioengine=libaio --output-format=json --end_fsync=1"
    )
    assert read == (
        f"{tmp_path}/a:b --name=bench --thread --filename=file --rw=read --bs=4096 --iodepth=1"
        " --size=1048576 --direct=0 --ioengine=libcufile --output-format=json"
        " --allow_file_create=0 --invalidate=1 --gpu_dev_ids=0 --cuda_io=posix"
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("echo 'fio: no such engine' >&2\necho more >&2\nexit 1", "'fio: no such engine'"),
        ("exit 3", "status 3, and it printed ''"),
        ("echo garbage", "status 0, and it printed 'garbage'"),
        ("printf '\\377\\376{'", "status 0, and it printed"),
        ("echo '{}'", "status 0"),
        ("echo '{\"jobs\": 5}'", "status 0"),
        ("echo '{\"jobs\": [7]}'", "status 0"),
        (printing({}), "status 0"),
        (printing(FIGURES | {"error": "bad"}), "status 0"),
        (printing(FIGURES) + "\nexit 9", "status 9"),
        ("kill -9 $$", "status -9"),
    ],
)
def test_a_failure_says_what_it_printed(tmp_path: Path, job: str, said: str) -> None:
    with pytest.raises(TransferError) as raised:
        write(standin(tmp_path, job), tmp_path)
    assert raised.value.errno == errno.EIO
    assert raised.value.filename == str(tmp_path / "file")
    assert "fio (libaio, 1 MiB, depth 4) failed: status" in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "figures",
    [
        {"error": 0},
        FIGURES | {"write": {"io_bytes": MIB}},
        FIGURES | {"write": "fast"},
        FIGURES | {"usr_cpu": None},
    ],
)
def test_a_result_without_figures(tmp_path: Path, figures: dict[str, object]) -> None:
    with pytest.raises(TransferError, match="fio's result has no figures") as raised:
        write(standin(tmp_path, printing(figures)), tmp_path)
    assert raised.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("moved", "milliseconds", "text"),
    [(MIB - 4096, 250, "1044480 of 1048576 bytes"), (MIB, 0, "in 0 s")],
)
def test_a_run_that_moved_less_or_took_no_time(
    tmp_path: Path, moved: int, milliseconds: int, text: str
) -> None:
    figures = FIGURES | {"write": {"io_bytes": moved, "runtime": milliseconds}}
    with pytest.raises(TransferError, match=text):
        write(standin(tmp_path, printing(figures)), tmp_path)


def test_a_failure_keeps_the_errno_of_the_job(tmp_path: Path) -> None:
    job = printing(FIGURES | {"error": errno.EINVAL})
    with pytest.raises(TransferError, match="failed: Invalid argument") as raised:
        write(standin(tmp_path, f"{job}\nexit 1"), tmp_path)
    assert raised.value.errno == errno.EINVAL
    full = tmp_path / "full"
    with pytest.raises(StorageFullError):
        write(standin(full, printing({"error": errno.ENOSPC})), tmp_path)


def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fio_module, "START_S_MAX", 0.2)
    monkeypatch.setattr(fio_module, "BYTES_PER_S_MIN", 1e12)
    fio = standin(tmp_path, f"echo $$ > {tmp_path}/pid\nexec /bin/sleep 60")
    with pytest.raises(TransferError, match="did not end within 0 s") as raised:
        write(fio, tmp_path)
    assert raised.value.errno == errno.ETIMEDOUT
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_one_that_has_gone(tmp_path: Path) -> None:
    fio = Fio(str(tmp_path / "gone"), "fio-0", ("libaio",))
    with pytest.raises(TransferError) as raised:
        write(fio, tmp_path)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, str(tmp_path / "gone"))


def test_the_real_one_writes_and_reads(real: Fio, tmp_path: Path) -> None:
    path = tmp_path / "a:b, c$d" / "file"
    path.parent.mkdir()
    for engine in real.engines:
        setting = Setting(engine, MIB, 2)
        written = real.write(path, setting, length=4 * MIB, direct=True)
        assert path.stat().st_size == written.length == 4 * MIB
        assert real.read(path, setting, length=4 * MIB, direct=True).length == 4 * MIB
        path.unlink()
    assert list(path.parent.iterdir()) == []


def test_the_real_one_counts_its_fsync(
    real: Fio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fsync is held up for a second, and its own clock has to show it."""
    compiler = shutil.which("c++")
    if compiler is None:
        missing("a C++ compiler")
    (tmp_path / "slow.cpp").write_text(SLOW_FSYNC)
    library = tmp_path / "slow.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "slow.cpp"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    moved = real.write(tmp_path / "file", LIBAIO, length=MIB, direct=True)
    assert moved.clocks.seconds >= 1.0


def test_the_real_one_says_why_it_failed(real: Fio, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="failed: Invalid argument") as raised:
        real.write(tmp_path / "file", Setting("libaio", 1000, 1), length=10_000, direct=True)
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(TransferError, match="nonsense"):
        write(real, tmp_path, setting=Setting("nonsense", MIB, 1))
