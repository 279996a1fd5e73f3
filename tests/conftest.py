"""Rules of the whole run: a skip in CI is a failure, and property tests say how to repeat theirs.

CI has every capability that a test can ask for, but a GPU and much time. A skip there means that
something went missing from the machine, and with it the proof.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

MAY_SKIP_IN_CI = ("gpu", "slow")

# No deadline: the examples that touch a disk take as long as the disk does.
settings.register_profile("dcp_gds", deadline=None, print_blob=True)
settings.load_profile("dcp_gds")


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


def _fail_skip_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps its reason, if this is CI."""
    if os.environ.get("CI") == "true" and report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI must run this test, and it was skipped: {reason}"
