"""The warning that every save without a process group gives is expected here."""

import pytest

from tests.ranks import EXPECTED_WARNINGS


def pytest_configure(config: pytest.Config) -> None:
    for message in EXPECTED_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{message}")
