"""Demo log: what a run of the demo told, and the figures that follow from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from dcp_gds.cli.demo_events import Event, Loaded, SaveDone, StepDone
from dcp_gds.cli.demo_settings import WriterName

__all__ = ["LossComparison", "RunLog", "SaveFigures", "compare_losses", "figures_of"]


@dataclass(slots=True)
class RunLog:
    """Events of one run, kept by kind.

    Parameters
    ----------
    losses
        By step and half batch.
    saves
        One for each rank and save.
    loaded
        What a resumed run loaded.
    """

    losses: dict[int, dict[int, float]] = field(default_factory=dict)
    saves: list[SaveDone] = field(default_factory=list)
    loaded: Loaded | None = None

    def add(self, event: Event) -> None:
        """Keep an event."""
        if isinstance(event, StepDone):
            self.losses.setdefault(event.step, {}).update(event.losses)
        elif isinstance(event, SaveDone):
            self.saves.append(event)
        elif isinstance(event, Loaded):
            self.loaded = event

    def mean_loss(self, step: int) -> float:
        """The loss of a step's global batch, or of what is known of it."""
        return statistics.fmean(self.losses[step].values())


@dataclass(frozen=True, slots=True)
class SaveFigures:
    """The saves of one writer: medians, with the extremes beside them.

    Parameters
    ----------
    writer, engines, fallbacks
        Who wrote, by which engines, and why not by better ones.
    saves
        How many count.
    bytes
        Payload of one checkpoint.
    gb_per_s, gb_per_s_range
        Payload by the time from `async_save` to the end of the save, in 10^9 bytes a second.
    blocked_seconds, blocked_seconds_max
        How long training stood still for one save.
    """

    writer: WriterName
    engines: tuple[str, ...]
    fallbacks: tuple[str, ...]
    saves: int
    bytes: int
    gb_per_s: float
    gb_per_s_range: tuple[float, float]
    blocked_seconds: float
    blocked_seconds_max: float


@dataclass(frozen=True, slots=True)
class LossComparison:
    """Losses of one run beside those of another, step by step and half by half.

    Parameters
    ----------
    steps, same_steps
        Steps that both have, and those of them whose losses are equal bit for bit.
    difference_max
        The largest difference relative to the first run's loss.
    """

    steps: int
    same_steps: int
    difference_max: float


def figures_of(saves: Iterable[SaveDone], *, writer: WriterName) -> SaveFigures:
    """Figures of a writer's saves, of which there is at least one.

    A save takes as long as on its slowest rank. The first one is not counted unless it is the
    only one: it pays for memory and code that the others find in place.
    """
    by_step: dict[int, list[SaveDone]] = {}
    for save in saves:
        if save.writer == writer:
            by_step.setdefault(save.step, []).append(save)
    groups = [by_step[step] for step in sorted(by_step)]
    counted = groups[1:] or groups
    speeds = [group[0].bytes / max(save.seconds for save in group) / 1e9 for group in counted]
    blocked = [max(save.blocked_seconds for save in group) for group in counted]
    every = [save for group in counted for save in group]
    return SaveFigures(
        writer=writer,
        engines=tuple(sorted({save.engine for save in every})),
        fallbacks=tuple(sorted({text for save in every for text in save.fallbacks})),
        saves=len(counted),
        bytes=counted[-1][0].bytes,
        gb_per_s=statistics.median(speeds),
        gb_per_s_range=(min(speeds), max(speeds)),
        blocked_seconds=statistics.median(blocked),
        blocked_seconds_max=max(blocked),
    )


def compare_losses(reference: RunLog, other: RunLog) -> LossComparison:
    """Compare the steps of `other` with those of the reference, which has all of them."""
    same_steps = 0
    difference_max = 0.0
    steps = 0
    for step, losses in other.losses.items():
        expected = reference.losses[step]
        steps += 1
        same_steps += losses.items() <= expected.items()
        for half, loss in losses.items():
            # A NaN would pass any comparison by "greater than".
            difference = abs(loss - expected[half]) / abs(expected[half])
            difference_max = max(difference_max, difference if difference >= 0 else float("inf"))
    return LossComparison(steps, same_steps, difference_max)
