"""Machine: that of `dcp-gds bench`, for the experiments too."""

from __future__ import annotations

from dcp_gds.benchmark.machine import WarmMemory, cached_bytes_of_tree, drop_caches, settle

__all__ = ["WarmMemory", "cached_bytes_of_tree", "drop_caches", "settle"]
