"""The README shows what gdscheck says: every line that it shows is in the output, in that order.

Method: the blocks of the README against the fixture hosts; lines left out are marked there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dcp_gds.preflight.command import COLUMNS, lines
from tests.preflight.hgx import HGX
from tests.preflight.test_hosts import HOSTS, verdict_on
from tests.preflight.trees import FixtureHost, build

README = Path(__file__).parents[2] / "README.md"
LEFT_OUT = "..."
DOCA = next(host for host in HOSTS if host.name == "doca-nvme-not-registered")


def block_starting(first: str) -> list[str]:
    """The lines of the README's block that starts with this one."""
    blocks = README.read_text(encoding="utf-8").split("```\n")
    return next(block for block in blocks if block.startswith(first)).splitlines()


def agrees(shown: list[str], printed: list[str]) -> bool:
    """Whether `shown` is `printed` with stretches left out where it says so."""
    at = 0
    for before, line in zip(["", *shown], shown, strict=False):
        if line == LEFT_OUT:
            continue
        rest = printed[at:] if before == LEFT_OUT else printed[at : at + 1]
        if line not in rest:
            return False
        at += rest.index(line) + 1
    return shown[-1] == LEFT_OUT or at == len(printed)


@pytest.mark.parametrize(("host", "first"), [(DOCA, "/data: staged direct"), (HGX, "/data: GDS")])
def test_the_readme_shows_the_output(host: FixtureHost, first: str, tmp_path: Path) -> None:
    printed = list(lines([verdict_on(host, build(host, tmp_path))], quiet=False))
    assert agrees(block_starting(first), printed)
    assert all(len(line) <= COLUMNS for line in printed)


def test_a_line_that_is_not_printed_is_seen() -> None:
    printed = ["a", "b", "c", "d"]
    assert agrees(["a", LEFT_OUT, "c", LEFT_OUT], printed)
    assert not agrees(["a", "c", LEFT_OUT], printed)
    assert not agrees(["a", LEFT_OUT, "x", LEFT_OUT], printed)
    assert not agrees(["a", LEFT_OUT, "c"], printed)
