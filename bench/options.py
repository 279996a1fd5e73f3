"""Options: what every benchmark takes on its command line."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Options", "parse_options", "scratch"]

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Options:
    """Rounds, where the files go, bytes of data, where the JSON goes, contenders (empty: all)."""

    rounds: int
    directory: Path
    length: int
    json_directory: Path
    only: tuple[str, ...]

    def select(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that were asked for; ends the program if there is none."""
        chosen = [name for name in names if not self.only or name in self.only]
        if not chosen:
            raise SystemExit(f"--only names none of: {', '.join(names)}")
        return chosen


def parse_options(
    question: str, arguments: Sequence[str] | None, *, rounds: int, gib: float
) -> Options:
    """Read the command line of one benchmark, given its defaults."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    parser.add_argument("--gib", type=float, default=gib, help="data; default: %(default).4g GiB")
    parser.add_argument(
        "--dir",
        type=Path,
        default=ROOT / "build" / "bench",
        help="where checkpoints are written, and removed again; default: %(default)s",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "bench" / "out",
        help="directory of the JSON result; default: %(default)s",
    )
    parser.add_argument("--only", action="append", default=[], metavar="CONTENDER")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.gib <= 0:
        parser.error("--rounds and --gib must be positive")
    given.dir.mkdir(parents=True, exist_ok=True)
    return Options(
        given.rounds, given.dir, int(given.gib * (1 << 30)), given.json, tuple(given.only)
    )


@contextlib.contextmanager
def scratch(options: Options) -> Iterator[Path]:
    """A fresh directory for checkpoints, removed with all that is in it."""
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-") as name:
        yield Path(name)
