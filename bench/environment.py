"""Environment: that of `dcp-gds bench`, for the experiments too."""

from __future__ import annotations

from dcp_gds.benchmark.environment import environment_of

__all__ = ["environment_of"]
