"""Demo log: what a run of the demo told, and the figures that follow from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dcp_gds.cli.demo_events import Event, Loaded, SaveDone, StepDone
from dcp_gds.cli.demo_settings import WriterName

__all__ = ["LossComparison", "RunLog", "SaveFigures", "Spread", "compare_losses", "figures_of"]


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
class Spread:
    """Median, extremes and number of some measurements, of which there is at least one."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of the values."""
        return cls(statistics.median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class SaveFigures:
    """The saves of one writer.

    Parameters
    ----------
    writer, engines, fallbacks
        Who wrote, by which engines, and why not by better ones.
    bytes
        Payload of one checkpoint.
    gb_per_s
        Payload by the time from `async_save` to the end of the save, in 10^9 bytes a second,
        while training goes on.
    alone_gb_per_s
        The same for saves with nothing beside them.
    blocked_ms
        How long training stood still for one save.
    durable_ms
        From `async_save` until the checkpoint was durable, while training goes on.
    """

    writer: WriterName
    engines: tuple[str, ...]
    fallbacks: tuple[str, ...]
    bytes: int
    gb_per_s: Spread
    alone_gb_per_s: Spread
    blocked_ms: Spread
    durable_ms: Spread


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
    """Figures of a writer's saves, of which there is at least one of each kind.

    A save takes as long as on its slowest rank. The first one is not counted unless it is the
    only one: it pays for memory and code that the others find in place.
    """
    groups: dict[tuple[bool, int], list[SaveDone]] = {}
    turns: dict[tuple[int, bool], int] = {}
    for save in saves:
        if save.writer == writer:
            # A rank reports its saves in order, so the n-th of each rank belong together.
            turn = turns[save.rank, save.alone] = turns.get((save.rank, save.alone), 0) + 1
            groups.setdefault((save.alone, turn), []).append(save)
    beside = [group for (alone, _), group in sorted(groups.items()) if not alone]
    beside = beside[1:] or beside
    alone = [group for (is_alone, _), group in sorted(groups.items()) if is_alone]
    every = [save for group in beside + alone for save in group]
    return SaveFigures(
        writer=writer,
        engines=tuple(sorted({save.engine for save in every})),
        # Each text names its save's directory, so those of all saves would say the same.
        fallbacks=next((save.fallbacks for save in every if save.fallbacks), ()),
        bytes=every[-1].bytes,
        gb_per_s=Spread.of([_gb_per_s(group) for group in beside]),
        alone_gb_per_s=Spread.of([_gb_per_s(group) for group in alone]),
        blocked_ms=Spread.of([1e3 * max(save.blocked_seconds for save in g) for g in beside]),
        durable_ms=Spread.of([1e3 * max(save.seconds for save in g) for g in beside]),
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


def _gb_per_s(save_of_ranks: Sequence[SaveDone]) -> float:
    """Speed of a save on all ranks."""
    return save_of_ranks[0].bytes / max(save.seconds for save in save_of_ranks) / 1e9
