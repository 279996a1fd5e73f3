"""What the tests of faults share: the table of what was tried and what came of it."""

from __future__ import annotations

import pytest

from tests.faults.tally import Tally

_TALLY = pytest.StashKey[Tally]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.setdefault(_TALLY, Tally()).lines()
    if lines:
        terminalreporter.section("faults tried")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def tally(pytestconfig: pytest.Config) -> Tally:
    """The run's tally."""
    return pytestconfig.stash.setdefault(_TALLY, Tally())
