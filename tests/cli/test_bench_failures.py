"""`dcp-gds bench` that fails or is ended says why in one line, and leaves nothing behind.

Method: whole runs of a tiny scope; signals sent from a stand-in for fio; saves and loads that fail.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from dcp_gds.benchmark import solo
from dcp_gds.benchmark.bare import BareTool
from dcp_gds.benchmark.setting import Moved
from dcp_gds.benchmark.solo import State
from dcp_gds.cli.main import main
from dcp_gds.errors import TransferError
from tests.benchmark.standin import install, only_on_path, printing
from tests.cli.benchruns import LENGTH, Bench, tiny
from tests.filesystems import Mounts

pytestmark = pytest.mark.root
Output = pytest.CaptureFixture[str]
MIB = 1 << 20


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return tiny(tmp_path, monkeypatch)


@pytest.fixture
def drive(mounts: Mounts) -> Path:
    """A directory where direct I/O is honoured, with a file of someone else's."""
    directory = mounts.directory("ext4")
    (directory / "mine").write_bytes(b"old")
    return directory


def assert_untouched(bench: Bench, drive: Path) -> None:
    """Nothing is left of the run, neither on the drive nor as its result."""
    assert [path.name for path in drive.iterdir()] == ["mine"]
    assert (drive / "mine").read_bytes() == b"old"
    assert list(bench.output.parent.glob("result*")) == []


def complaint(capsys: Output) -> str:
    """The last line on stderr, which is all that the error has."""
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--quick", "--thorough"], "--quick and --thorough exclude each other"),
        (["--rounds", "0"], "--rounds is 0; expected at least 1"),
        (["--size", "100MB"], "--size is 100000000 bytes; expected a positive multiple of 128 MiB"),
        (["--size", "much"], "--size is 'much'; expected bytes such as 512GiB"),
        (["--output", "/nowhere/name"], "--output is /nowhere/name; expected a file name in a"),
        (["--output", "/proc/sys/name"], "--output is /proc/sys/name; expected a directory that"),
        (["--output", ""], "--output is .; expected a file name in a directory"),
    ],
)
def test_a_wrong_option(
    bench: Bench, drive: Path, capsys: Output, options: list[str], text: str
) -> None:
    assert bench(drive, *options) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"dcp-gds: error: {text}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert_untouched(bench, drive)


def test_a_path_that_is_no_directory(bench: Bench, drive: Path, capsys: Output) -> None:
    assert bench(drive / "mine") == 2
    assert "is no directory; name one on the drive that is to be measured" in complaint(capsys)
    with pytest.raises(SystemExit) as ended:
        main(["bench"])
    assert ended.value.code == 2
    assert_untouched(bench, drive)


def test_too_little_room_is_refused_before_anything_is_written(
    drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(BareTool, "write", None)
    only_on_path(monkeypatch, tmp_path)
    bench = Bench(tmp_path)
    # 3 x 128 MiB for what is read, and 256 MiB for the sweep.
    assert bench(drive, "--quick", "--size", "128MiB") == 2
    said = complaint(capsys)
    assert "the benchmark needs 640.0 MiB, and " in said
    assert "needed 671088640 bytes, free " in said
    assert_untouched(bench, drive)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(
    bench: Bench,
    drive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    number: signal.Signals,
) -> None:
    """It comes while fio runs, which has made its file and would go on for a minute."""
    # A shell starts what runs in the background with SIGINT ignored.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, previous))
    before = signal.getsignal(signal.SIGTERM)
    job = f"echo $$ > {tmp_path}/pid; echo x > sweep; kill -{int(number)} $PPID; exec /bin/sleep 60"
    only_on_path(monkeypatch, install(tmp_path / "bin", job=job))
    assert bench(drive, "--quick") == 130
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    assert signal.getsignal(signal.SIGTERM) is before
    assert_untouched(bench, drive)


def test_a_fio_that_fails_in_a_comparison_ends_it(
    bench: Bench, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    moved = {"io_bytes": 2 * MIB, "runtime": 1}
    works = {"error": 0, "write": moved, "read": moved, "usr_cpu": 0, "sys_cpu": 0}
    full = {"error": errno.EDQUOT}
    # The files of the sweep are 2 MiB long, those of the comparison 8.
    job = f'case "$*" in *size={LENGTH}*) {printing(full)};; *) {printing(works)};; esac'
    only_on_path(monkeypatch, install(tmp_path / "bin", job=job))
    assert bench(drive, "--quick", "--rounds", "1") == 2
    said = complaint(capsys)
    assert "[Errno 122] fio (io_uring, 1 MiB, depth 2) failed: Disk quota exceeded" in said
    assert_untouched(bench, drive)


def test_no_tool_that_works_ends_it(
    bench: Bench, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def write(self: BareTool, path: Path, *_: object, **__: object) -> Moved:
        raise TransferError(errno.EIO, "a bad block", path)

    monkeypatch.setattr(BareTool, "write", write)
    only_on_path(monkeypatch, install(tmp_path / "bin", job="echo broken; exit 1"))
    assert bench(drive, "--quick") == 2
    said = complaint(capsys)
    assert "no file could be written and read: fio: [Errno 5] fio (io_uring, 1 MiB, " in said
    assert "it printed 'broken'" in said
    assert "; bare: [Errno 5] a bad block" in said
    assert str(drive) in said
    assert_untouched(bench, drive)


def fail_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """The save that follows the warming up is done, and then fails."""
    real = solo.save

    def save(state: State, writer: StorageWriter) -> None:
        real(state, writer)
        if sum(tensor.nbytes for tensor in state.values()) == LENGTH:
            raise TransferError(errno.EIO, "the drive has gone", "shard")

    monkeypatch.setattr(solo, "save", save)


def load_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(state: State, reader: StorageReader) -> None:
        pass

    monkeypatch.setattr(solo, "load", load)


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (fail_save, "[Errno 5] the drive has gone"),
        (load_nothing, "loaded tensor_00000 otherwise than it was saved"),
    ],
)
def test_a_save_or_load_that_goes_wrong_ends_it(
    bench: Bench,
    drive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    break_it: Callable[[pytest.MonkeyPatch], None],
    text: str,
) -> None:
    only_on_path(monkeypatch, tmp_path)
    break_it(monkeypatch)
    assert bench(drive, "--quick", "--rounds", "1") == 2
    assert text in complaint(capsys)
    assert_untouched(bench, drive)


def test_a_result_that_cannot_be_written_has_been_shown(
    bench: Bench, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    only_on_path(monkeypatch, tmp_path)
    (tmp_path / "result.json").mkdir()
    assert bench(drive, "--quick", "--rounds", "1") == 2
    said = capsys.readouterr()
    assert "Durable write; ceiling: bare" in said.out
    assert f"[Errno 21] Is a directory: '{tmp_path}/result.json'" in " ".join(said.err.split())
