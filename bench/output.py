"""Output: a table for people and JSON for whoever plots it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.environment import environment_of
from bench.measure import Run, Spread
from bench.options import Options

__all__ = ["Column", "Comparison", "publish"]

# Names and spreads need it; a terminal that is narrower wraps.
WIDTH = 132


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """A figure of every contender: its heading with the unit, and its value in one run."""

    heading: str
    value: Callable[[Run], float]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One ratio per round, and what it is a ratio of."""

    text: str
    ratios: list[float]


def publish(
    question: str,
    options: Options,
    runs: Sequence[Run],
    *,
    name: str,
    columns: Sequence[Column],
    comparisons: Sequence[Comparison] = (),
) -> None:
    """Print the tables and write `<name>.json`."""
    contenders = list(dict.fromkeys(run.contender for run in runs))
    summary = {
        contender: {
            column.heading: Spread.of(
                column.value(run) for run in runs if run.contender == contender
            )
            for column in columns
        }
        for contender in contenders
    }
    compared = {item.text: Spread.of(item.ratios) for item in comparisons if item.ratios}
    environment = environment_of(options.directory)
    document = {
        "question": question,
        "environment": environment,
        "rounds": options.rounds,
        "length": options.length,
        "runs": runs,
        "summary": summary,
        "ratios": compared,
    }
    options.json_directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, default=_plain) + "\n"
    (options.json_directory / f"{name}.json").write_text(text, encoding="utf-8")
    console = Console(width=WIDTH, highlight=False)
    console.print(_summary_table(question, [column.heading for column in columns], summary))
    if compared:
        console.print(_comparison_table(compared))
    busy = sum(not run.quiet for run in runs)
    console.print(
        f"median (least-greatest) of {options.rounds} interleaved rounds, "
        f"{options.length / (1 << 30):.3g} GiB; {', '.join(environment.values())}"
    )
    if busy:
        console.print(f"{busy} of {len(runs)} runs began on a drive that others kept busy")
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        console.print("not a quiet machine: whoever needs less CPU looks faster than it is")


def _summary_table(
    question: str, headings: Sequence[str], summary: Mapping[str, Mapping[str, Spread]]
) -> Table:
    table = Table(title=question, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", min_width=min(len(heading), 12))
    for contender, figures in summary.items():
        table.add_row(contender, *(str(spread) for spread in figures.values()))
    return table


def _comparison_table(compared: Mapping[str, Spread]) -> Table:
    table = Table()
    table.add_column("ratio of each round")
    table.add_column("median (spread)", justify="right")
    for text, spread in compared.items():
        table.add_row(text, str(spread))
    return table


def _plain(value: object) -> object:
    """Dataclasses for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")
