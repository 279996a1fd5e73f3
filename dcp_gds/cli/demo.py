"""Demo: the command that trains, gets killed while it saves, and resumes on fewer ranks."""

from __future__ import annotations

import argparse
import contextlib
import errno
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dcp_gds.cli.demo_events import Event, SaveDone, StepDone, Writing
from dcp_gds.cli.demo_log import RunLog
from dcp_gds.cli.demo_ranks import DemoRanks
from dcp_gds.cli.demo_report import DemoResult, KillOutcome, is_equal, print_result
from dcp_gds.cli.demo_settings import DemoSettings
from dcp_gds.cli.progress import SaveProgress
from dcp_gds.errors import ConfigError, DcpGdsError, StorageFullError, TransferError

__all__ = ["configure", "run", "run_demo"]

STEPS_DEFAULT = 36
SMALL_STEPS_DEFAULT = 12
WRITERS = ("dcp_gds", "stock")
# By each writer, after the uninterrupted run.
ALONE_SAVES = 3
METADATA_FILE = ".metadata"
# Beyond what the checkpoints need, which is known within a few percent.
FREE_BYTES_MARGIN = 64 << 20
EXIT_UNEQUAL = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Train a small transformer on two ranks under FSDP2 and save it by async_save, with"
        " GDSWriter and the stock FileSystemWriter taking turns; do it again and kill both ranks"
        " while a save runs; resume on one rank from the last commit. Shows what was measured,"
        " and whether the resumed loss equals the uninterrupted one (status 1 if not)."
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where the checkpoints go and stay: a new or empty directory on the drive to be"
        " measured (default: a temporary one in the current directory)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        help=f"steps of the uninterrupted run (default: {STEPS_DEFAULT},"
        f" {SMALL_STEPS_DEFAULT} with --small)",
    )
    parser.add_argument(
        "--small", action="store_true", help="a tiny model: quick, but says nothing of bandwidth"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 if the resumed loss equals the uninterrupted one, else 1."""
    default = SMALL_STEPS_DEFAULT if arguments.small else STEPS_DEFAULT
    steps = default if arguments.steps is None else arguments.steps
    settings = DemoSettings.small(steps=steps) if arguments.small else DemoSettings(steps=steps)
    with _working_directory(arguments.dir) as directory:
        result = run_demo(settings, directory, Console())
    return 0 if is_equal(result) else EXIT_UNEQUAL


def run_demo(settings: DemoSettings, directory: Path, console: Console) -> DemoResult:
    """Run the demo in an existing directory and print what happened.

    Raises
    ------
    StorageFullError
        Before anything is started, if the checkpoints would not fit.
    DcpGdsError
        If a rank fails.
    """
    began = time.monotonic()
    _check_room(settings, directory)
    uninterrupted = _run_through(settings, directory / "uninterrupted", console)
    interrupted, kill = _run_into_kill(settings, directory / "interrupted", console)
    resumed = _resume(settings, kill.resume_from, directory / "resumed", console)
    result = DemoResult(
        settings=settings,
        directory=directory,
        uninterrupted=uninterrupted,
        interrupted=interrupted,
        kill=kill,
        resumed=resumed,
        seconds=time.monotonic() - began,
    )
    print_result(console, result)
    return result


@dataclass(slots=True)
class _Follower:
    """Keeps a run's events and shows them on the bar."""

    settings: DemoSettings
    title: str
    bar: SaveProgress
    log: RunLog
    written: dict[int, tuple[int, int]]
    saving: int = 0

    def follow(self, event: Event) -> None:
        """Take in an event."""
        self.log.add(event)
        if isinstance(event, StepDone):
            loss = self.log.mean_loss(event.step)
            self.bar.rename(
                f"{self.title}: step {event.step} of {self.settings.steps}, loss {loss:.2f}"
            )
        elif isinstance(event, Writing):
            if event.step != self.saving:
                self.saving = event.step
                self.written.clear()
            self.written[event.rank] = (event.done_bytes, event.total_bytes)
            done, total = map(sum, zip(*self.written.values(), strict=True))
            self.bar(done, total)


def _run_through(settings: DemoSettings, directory: Path, console: Console) -> RunLog:
    """The uninterrupted run: the reference for the losses, and the one that is measured."""
    directory.mkdir()
    ranks = DemoRanks(
        settings, world_size=2, directory=directory, writers=WRITERS, alone_saves=ALONE_SAVES
    )
    with _following(settings, "uninterrupted, 2 ranks", console) as follower, ranks:
        for event in ranks.events():
            follower.follow(event)
        _pass_on(ranks.finish(), console)
    return follower.log


def _run_into_kill(
    settings: DemoSettings, directory: Path, console: Console
) -> tuple[RunLog, KillOutcome]:
    """The run that is killed when the chosen save has written half of a rank's bytes."""
    directory.mkdir()
    ranks = DemoRanks(settings, world_size=2, directory=directory, writers=("dcp_gds",))
    with _following(settings, "to be killed, 2 ranks", console) as follower, ranks:
        for event in ranks.events():
            follower.follow(event)
            if _is_time_to_kill(event, settings.kill_step):
                break
        codes = ranks.kill()
    if any(code != -signal.SIGKILL for code in codes):
        raise DcpGdsError(f"the ranks were to be killed, but ended with {codes}")
    written = sum(done for done, _ in follower.written.values())
    return follower.log, _look_at(directory, settings.kill_step, written_bytes=written)


def _resume(settings: DemoSettings, source: Path, directory: Path, console: Console) -> RunLog:
    """The run on one rank that goes on from the last commit."""
    directory.mkdir()
    ranks = DemoRanks(settings, world_size=1, directory=directory, writers=(), resume_from=source)
    with _following(settings, "resumed, 1 rank", console) as follower, ranks:
        for event in ranks.events():
            follower.follow(event)
        _pass_on(ranks.finish(), console)
    return follower.log


@contextlib.contextmanager
def _following(settings: DemoSettings, title: str, console: Console) -> Iterator[_Follower]:
    """A follower with its bar on the screen."""
    with SaveProgress(console, f"{title}: starting") as bar:
        yield _Follower(settings, title, bar, RunLog(), {})


def _is_time_to_kill(event: Event, kill_step: int) -> bool:
    """Whether the save of this step is in its middle, or over before the middle was seen."""
    if isinstance(event, Writing) and event.step == kill_step:
        return 2 * event.done_bytes >= event.total_bytes
    return isinstance(event, SaveDone) and event.step == kill_step


def _look_at(directory: Path, kill_step: int, *, written_bytes: int) -> KillOutcome:
    """What the kill left on the disk."""
    checkpoints = sorted(path for path in directory.iterdir() if path.is_dir())
    committed = [path for path in checkpoints if (path / METADATA_FILE).exists()]
    if not committed:
        raise DcpGdsError(f"no save was committed before the kill at step {kill_step}")
    torn = [path for path in checkpoints if path not in committed]
    return KillOutcome(
        step=kill_step,
        resume_from=committed[-1],
        resume_step=int(committed[-1].name.rpartition("-")[2]),
        written_bytes=written_bytes,
        torn_files=sum(1 for path in torn for _ in path.iterdir()),
    )


def _pass_on(text: str, console: Console) -> None:
    """Print what the ranks had to say besides events: warnings of torch, say."""
    if text:
        console.print(text, markup=False, highlight=False, style="yellow")


@contextlib.contextmanager
def _working_directory(wanted: Path | None) -> Iterator[Path]:
    """The directory to work in; a temporary one, on the current disk, goes away afterwards."""
    if wanted is None:
        # Not under /tmp, which often is memory, where a save costs nothing and proves nothing.
        with tempfile.TemporaryDirectory(prefix="dcp-gds-demo-", dir=Path.cwd()) as name:
            yield Path(name)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        is_empty = next(wanted.iterdir(), None) is None
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, str(error.strerror), wanted) from error
    if not is_empty:
        raise ConfigError(f"--dir {wanted} is not empty; give a new or an empty directory")
    yield wanted.absolute()


def _check_room(settings: DemoSettings, directory: Path) -> None:
    """Refuse to start what would not fit."""
    saves = (settings.steps - 1) // settings.save_every + ALONE_SAVES * len(WRITERS)
    saves_killed = settings.kill_step // settings.save_every
    needed = (saves + saves_killed) * settings.state_bytes + FREE_BYTES_MARGIN
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise StorageFullError(
            errno.ENOSPC, "no room for the demo's checkpoints", directory, needed=needed, free=free
        )
