"""Fixture of the tests of system calls: a process whose calls are observed and made to fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.calls.injector import compiled, preloaded
from tests.ranks import Ranks


@pytest.fixture(scope="session")
def observed_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """A process whose system calls are observed."""
    with preloaded(compiled(tmp_path_factory.mktemp("preload"))) as process:
        yield process
