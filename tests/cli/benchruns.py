"""Bench runs: `dcp-gds bench` in this process, at a size that takes a second."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcp_gds.benchmark import machine
from dcp_gds.benchmark import scope as scope_module
from dcp_gds.benchmark.scope import Scope, choose_scope
from dcp_gds.benchmark.sweep import Grid
from dcp_gds.cli.main import main

__all__ = ["LENGTH", "Bench", "tiny"]

MIB = 1 << 20
LENGTH = 8 * MIB


class Bench:
    """The command, with its results in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.output = directory / "result"

    def __call__(self, path: Path, *options: str) -> int:
        """Run it and return its exit status."""
        words = ["bench", str(path), "--output", str(self.output)]
        return main([*words, *options])

    @property
    def document(self) -> dict[str, Any]:
        """The JSON that it has written."""
        content: dict[str, Any] = json.loads(self.output.with_name("result.json").read_text())
        return content


def tiny(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Make every scope tiny, wait for no drive, and leave the machine's memory and caches alone."""
    real: Callable[..., Scope] = choose_scope
    grid = Grid(2 * MIB, (MIB,), (2,))

    def choose(*args: Any, **options: Any) -> Scope:
        return replace(real(*args, **options), length=LENGTH, grid=grid)

    monkeypatch.setattr(scope_module, "choose_scope", choose)
    monkeypatch.setattr(machine, "SETTLE_S_MIN", 0.0)
    monkeypatch.setattr(machine, "WARM_SHARE_MAX", 0.0001)
    monkeypatch.setattr(machine, "DROP_CACHES", directory / "caches")
    # All that the tests have imported would be looked at before each of the runs.
    monkeypatch.setattr("gc.collect", lambda: 0)
    return Bench(directory)
