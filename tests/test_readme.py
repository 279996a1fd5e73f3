"""The README tells what is tested: its matrix is written from the parameters of the tests."""

from __future__ import annotations

from pathlib import Path

from tests.checkpoint.samples import LAYOUTS
from tests.checkpoint.test_dtypes import EXPECTED
from tests.filesystems import DIRECT_KINDS, KINDS

README = Path(__file__).parents[1] / "README.md"


def matrix() -> str:
    """The table, in Markdown."""
    dtypes = sorted(name for line in EXPECTED for name in line.split())
    buffered = [kind for kind in KINDS if kind not in DIRECT_KINDS]
    rows = {
        "dtypes, bit for bit": dtypes,
        "layouts": list(LAYOUTS),
        "filesystems, `direct`": list(DIRECT_KINDS),
        "filesystems, `buffered`": buffered,
    }
    lines = [f"| {what} | {', '.join(names)} |" for what, names in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def test_the_readme_has_the_matrix() -> None:
    assert matrix() in README.read_text(encoding="utf-8")
