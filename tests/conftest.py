"""Rules of the whole run: a skip in CI is a failure, and a failure says enough and no more; what
many tests share.

CI has every capability that a test can ask for, but a GPU and much time. A skip there means that
something went missing from the machine, and with it the proof.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings

from tests.gdssim.build import Libraries, build
from tests.ranks import EXPECTED_WARNINGS, Ranks

MAY_SKIP_IN_CI = ("gpu", "slow")
# pytest compares long texts line by line, in quadratic time, and in CI it leaves nothing out: two
# unequal tensors' bytes kept it busy for seven minutes.
SHOWN_LENGTH_MAX = 20_000

# No deadline: the examples that touch a disk take as long as the disk does.
settings.register_profile("dcp_gds", deadline=None, print_blob=True)
settings.load_profile("dcp_gds")


def pytest_configure(config: pytest.Config) -> None:
    """Let pass what DCP says of every save without a process group.

    Here and not in a folder's conftest: those are loaded too late when all tests are run.
    """
    for message in EXPECTED_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{message}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected_failure = hasattr(report, "wasxfail")
    allowed = any(item.get_closest_marker(name) for name in MAY_SKIP_IN_CI)
    if not expected_failure and not allowed:
        _fail_skip_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_skip_in_ci(report)
    return report


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show the ends of values that are too long to compare line by line, and which items differ."""
    if max(len(repr(left)), len(repr(right))) <= SHOWN_LENGTH_MAX:
        return None
    lines = [f"{reprlib.repr(left)} {op} {reprlib.repr(right)}"]
    if isinstance(left, dict) and isinstance(right, dict):
        lines += [
            f"at {key!r}: {reprlib.repr(left.get(key))} and {reprlib.repr(right.get(key))}"
            for key in {**left, **right}
            if repr(left.get(key)) != repr(right.get(key))
        ]
    return lines


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """Groups of ranks by size, each started when a test first asks for it."""
    groups: dict[int, Ranks] = {}
    yield lambda world_size: groups.setdefault(world_size, Ranks(world_size))
    for group in groups.values():
        group.close()


@pytest.fixture(scope="session")
def gdssim(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The simulated libcuda and libcufile; only child processes load them."""
    return build(tmp_path_factory.mktemp("gdssim"))


def _fail_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps its reason, if this is CI."""
    if os.environ.get("CI") == "true" and report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI must run this test, and it was skipped: {reason}"
