"""Check: the command that tells which way a checkpoint takes to a path; `gdscheck` by itself."""

from __future__ import annotations

from dcp_gds.preflight.command import configure, run

__all__ = ["configure", "run"]
