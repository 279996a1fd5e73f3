"""Measure: that of `dcp-gds bench`, for the experiments too."""

from __future__ import annotations

from dcp_gds.benchmark.measure import Clocks, Run, Spread, interleave, per_round, timed

__all__ = ["Clocks", "Run", "Spread", "interleave", "per_round", "timed"]
