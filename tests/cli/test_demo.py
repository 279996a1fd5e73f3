"""The demo does what it says: it measures, kills, resumes, and cleans up after itself.

Method: one run with a tiny model whose result serves many tests, and the command without a run.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from torch.distributed.checkpoint.filesystem import FileSystemReader

from dcp_gds.cli import demo
from dcp_gds.cli.demo_events import Event, StepDone, Writing
from dcp_gds.cli.demo_report import DemoResult, is_equal
from dcp_gds.cli.demo_settings import DemoSettings
from dcp_gds.cli.main import main
from dcp_gds.errors import DcpGdsError, StorageFullError
from tests.cli.demosamples import SAVE, SETTINGS, log_of, result_with


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, str]:
    """The result of a demo, and what it printed."""
    output = io.StringIO()
    console = Console(file=output, width=100)
    result = demo.run_demo(SETTINGS, tmp_path_factory.mktemp("demo"), console)
    return result, " ".join(output.getvalue().split())


@pytest.fixture
def result(finished: tuple[DemoResult, str]) -> DemoResult:
    return finished[0]


@pytest.fixture
def printed(finished: tuple[DemoResult, str]) -> str:
    return finished[1]


def test_resumed_loss_equals_the_uninterrupted_one(result: DemoResult, printed: str) -> None:
    assert is_equal(result)
    assert sorted(result.uninterrupted.losses) == [1, 2, 3, 4, 5, 6]
    first = result.kill.resume_step + 1
    assert sorted(result.resumed.losses) == list(range(first, 7))
    for step, losses in result.resumed.losses.items():
        assert sorted(losses) == [0, 1]
        assert losses == pytest.approx(result.uninterrupted.losses[step], rel=1e-5)
    assert result.uninterrupted.mean_loss(6) < result.uninterrupted.mean_loss(1)
    assert "The resumed loss equals the uninterrupted one" in printed


def test_killed_run_leaves_its_last_commit_and_stock_dcp_reads_it(result: DemoResult) -> None:
    kill = result.kill
    assert kill.step == SETTINGS.kill_step == 4
    assert kill.resume_step in (kill.step - 1, kill.step)
    assert kill.resume_from == result.directory / f"interrupted/dcp_gds-step-{kill.resume_step:06d}"
    metadata = FileSystemReader(kill.resume_from).read_metadata()
    assert "model.pairs.weight" in metadata.state_dict_metadata
    # It died then: nobody trained on to the end.
    assert 6 not in result.interrupted.losses
    loaded = result.resumed.loaded
    assert loaded is not None
    assert (loaded.step, loaded.verified_bytes) == (kill.resume_step, loaded.bytes)
    assert loaded.bytes >= SETTINGS.state_bytes


def test_both_writers_are_measured_in_turns(result: DemoResult, printed: str) -> None:
    saves = [save for save in result.uninterrupted.saves if save.rank == 0]
    assert [save.writer for save in saves if not save.alone] == [
        *("dcp_gds", "stock", "stock", "dcp_gds", "dcp_gds")
    ]
    assert [save.writer for save in saves if save.alone].count("stock") == demo.ALONE_SAVES
    assert {save.engine for save in saves if save.writer == "stock"} == {"page cache"}
    assert {save.engine for save in saves if save.writer == "dcp_gds"} <= {"direct", "buffered"}
    assert len({save.bytes for save in saves}) == 1
    assert all(save.seconds > 0 and save.blocked_seconds > 0 for save in saves)
    assert "stock FileSystemWriter" in printed
    assert f"{saves[0].bytes:,}" in printed


def test_ranks_print_no_warnings(printed: str) -> None:
    assert printed.startswith("A transformer of 0.3 million parameters")
    assert "Warning" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "5"], "steps is 5; expected 6 to"),
        (["--steps", "0"], "steps is 0; expected 6 to"),
        (["--dir", "{used}"], "is not empty"),
        (["--dir", "{used}/file"], "exists"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(demo, "run_demo", None)
    assert main(["demo", "--small", *(word.format(used=tmp_path) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_full_disk_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000_000))
    with pytest.raises(StorageFullError) as caught:
        demo.run_demo(SETTINGS, tmp_path, Console(file=io.StringIO()))
    assert caught.value.free == 10_000_000
    assert caught.value.needed is not None
    # Fifteen checkpoints: five and six of the first run, four of the second.
    assert caught.value.needed >= 15 * SETTINGS.state_bytes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("named", [False, True])
def test_directory_stays_only_if_it_was_named(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[DemoSettings, Path]] = []

    def run_demo(settings: DemoSettings, directory: Path, _: Console) -> DemoResult:
        (directory / "checkpoint").mkdir()
        seen.append((settings, directory))
        return result_with(log_of(2, 1, first=5))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "run_demo", run_demo)
    assert main(["demo", *(["--dir", "new/one"] if named else ["--small", "--steps", "7"])]) == 0
    [(settings, directory)] = seen
    assert tmp_path in directory.parents
    assert directory.exists() == named
    assert settings == (DemoSettings() if named else DemoSettings.small(steps=7))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Writing(0, 4, 49, 100), False),
        (Writing(1, 4, 50, 100), True),
        (Writing(0, 3, 99, 100), False),
        (replace(SAVE, step=4), True),
        (replace(SAVE, step=3), False),
        (StepDone(0, 4, {0: 1.0}), False),
    ],
)
def test_kill_waits_for_the_middle_of_its_save(event: Event, expected: bool) -> None:
    assert demo._is_time_to_kill(event, 4) == expected


def test_kill_without_any_commit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dcp_gds-step-000001").mkdir()
    with pytest.raises(DcpGdsError, match="no save was committed"):
        demo._look_at(tmp_path, 2, written_bytes=0)
