"""Benchmark: what the drive can do, and how much of it a save and a load reach."""
