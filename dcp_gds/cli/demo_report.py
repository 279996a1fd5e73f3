"""Demo report: what the demo found, as tables and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dcp_gds.cli.demo_log import (
    LossComparison,
    RunLog,
    SaveFigures,
    Spread,
    compare_losses,
    figures_of,
)
from dcp_gds.cli.demo_settings import DemoSettings

__all__ = ["LOSS_TOLERANCE", "DemoResult", "KillOutcome", "is_equal", "print_result"]

# Losses are expected to be equal bit for bit (see `demo_rank`). The tolerance is for machines whose
# matrix kernels round differently where a tensor lies elsewhere in memory: with every parameter
# changed by 2e-7 the loss moved by 1e-7, with one of AdamW's averages lost by 7e-3 or more.
LOSS_TOLERANCE = 1e-5
# Rows of the loss table: enough to see the way, not every step.
LOSS_ROWS_MAX = 8
WRITER_TITLES = {"dcp_gds": "GDSWriter", "stock": "stock FileSystemWriter"}


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """What the kill left behind.

    Parameters
    ----------
    step
        The step whose save was killed.
    resume_from, resume_step
        The last committed checkpoint.
    written_bytes
        What both ranks had reported as written of the killed save.
    torn_files
        Files of saves without `.metadata`, which are no checkpoints.
    """

    step: int
    resume_from: Path
    resume_step: int
    written_bytes: int
    torn_files: int


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that the demo found."""

    settings: DemoSettings
    directory: Path
    uninterrupted: RunLog
    interrupted: RunLog
    kill: KillOutcome
    resumed: RunLog
    seconds: float


def is_equal(result: DemoResult) -> bool:
    """Whether the resumed run reached the end, with the uninterrupted one's losses."""
    comparison = compare_losses(result.uninterrupted, result.resumed)
    expected_steps = result.settings.steps - result.kill.resume_step
    return comparison.steps == expected_steps and comparison.difference_max <= LOSS_TOLERANCE


def print_result(console: Console, result: DemoResult) -> None:
    """Print the whole result."""
    say = Sayer(console)
    settings = result.settings
    say(
        f"A transformer of {settings.parameters / 1e6:.1f} million parameters"
        f" ({settings.state_bytes / 1e6:.0f} MB with AdamW's state), trained on Python's own"
        f" documentation by FSDP2, {settings.steps} steps on 2 ranks, saved every"
        f" {_count(settings.save_every, 'step')} in {result.directory}."
    )
    figures = [
        figures_of(result.uninterrupted.saves, writer=writer) for writer in ("dcp_gds", "stock")
    ]
    console.print(_saves_table(figures))
    for text in figures[0].fallbacks:
        say(f"Not by a better engine: {text}")
    say(_kill_text(result))
    say(_resume_text(result))
    console.print(_losses_table(result))
    for text in _verdict(result):
        say(text)
    say(f"{result.seconds:.0f} s in all.")


@dataclass(frozen=True, slots=True)
class Sayer:
    """Prints sentences as they are: no markup, no colours in numbers."""

    console: Console

    def __call__(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)


def _saves_table(figures: list[SaveFigures]) -> Table:
    """The writers beside each other."""
    table = Table(
        title="Asynchronous saves, writers taking turns: median (extremes)",
        caption="GB/s: state by the time from async_save to the committed checkpoint; each writer's"
        " first save is not counted. Blocked: the call, and the wait if the save was still running"
        " when the next was due. Both sync what they write.",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for row in figures:
        table.add_column(WRITER_TITLES[row.writer], justify="right")
    table.add_row("engine", *(", ".join(row.engines) for row in figures))
    table.add_row("bytes of a checkpoint", *(f"{row.bytes:,}" for row in figures))
    table.add_row("GB/s while training", *(_in_cell(row.gb_per_s, ".2f") for row in figures))
    table.add_row("GB/s after training", *(_in_cell(row.alone_gb_per_s, ".2f") for row in figures))
    table.add_row("training blocked, ms", *(_in_cell(row.blocked_ms, ".0f") for row in figures))
    table.add_row("durable after, ms", *(_in_cell(row.durable_ms, ".0f") for row in figures))
    return table


def _in_cell(spread: Spread, form: str) -> str:
    """A spread as text."""
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"


def _count(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _kill_text(result: DemoResult) -> str:
    """What happened to the run that was killed."""
    kill = result.kill
    if kill.resume_step == kill.step:
        return (
            f"Killed: both ranks, by SIGKILL, at the save of step {kill.step}, which had been"
            " committed just before."
        )
    return (
        f"Killed: both ranks, by SIGKILL, in the save of step {kill.step}, after"
        f" {kill.written_bytes / 1e6:.0f} MB of it. {_count(kill.torn_files, 'shard file')} without"
        f" .metadata stayed behind: no checkpoint. The last one is that of step {kill.resume_step}."
    )


def _resume_text(result: DemoResult) -> str:
    """What the resumed run loaded."""
    loaded = result.resumed.loaded
    assert loaded is not None, "a resumed run loads first"
    share = loaded.verified_bytes / loaded.bytes
    return (
        f"Resumed: on 1 rank from step {loaded.step}. GDSReader loaded {loaded.bytes:,} bytes of"
        f" the 2 ranks' shards by {loaded.engine} in {loaded.seconds:.2f} s"
        f" ({loaded.bytes / loaded.seconds / 1e9:.2f} GB/s), {share:.0%} compared with checksums."
    )


def _losses_table(result: DemoResult) -> Table:
    """The three runs' losses beside each other, with the digits that tell floats apart."""
    table = Table(title="Loss (nats per byte)", title_justify="left")
    for heading in ("step", "uninterrupted, 2 ranks", "killed, 2 ranks", "resumed, 1 rank"):
        table.add_column(heading, justify="right")
    runs = (result.uninterrupted, result.interrupted, result.resumed)
    for step in _shown_steps(result):
        cells = [f"{run.mean_loss(step):.9f}" if step in run.losses else "" for run in runs]
        table.add_row(str(step), *cells)
    return table


def _shown_steps(result: DemoResult) -> list[int]:
    """First and last step, those around the commit and the kill, and some of the resumed ones."""
    kill, last = result.kill, result.settings.steps
    shown = {1, kill.resume_step, kill.resume_step + 1, kill.step, last}
    shown.update(range(kill.step, last, max(1, (last - kill.step) // 3)))
    return sorted(shown)[: LOSS_ROWS_MAX - 1] + [last] * (last not in sorted(shown)[:7])


def _verdict(result: DemoResult) -> list[str]:
    """Whether the losses are equal, and how equal."""
    resumed = compare_losses(result.uninterrupted, result.resumed)
    interrupted = compare_losses(result.uninterrupted, result.interrupted)
    word = "equals" if is_equal(result) else "DIFFERS from"
    return [
        f"The resumed loss {word} the uninterrupted one: {_in_words(resumed)}",
        f"Until the kill, with other saves in between: {_in_words(interrupted)}",
    ]


def _in_words(comparison: LossComparison) -> str:
    """A comparison as part of a sentence."""
    text = f"{comparison.same_steps} of {comparison.steps} steps bit for bit"
    if comparison.same_steps == comparison.steps:
        return f"{text}."
    return (
        f"{text}, largest relative difference {comparison.difference_max:.1e}"
        f" (tolerance {LOSS_TOLERANCE:.0e})."
    )
