"""Benchmarks: one script per question; `python -m bench` runs them all."""
