"""Simulated libcuda and libcufile: kvikio takes its cuFile path without a GPU."""
