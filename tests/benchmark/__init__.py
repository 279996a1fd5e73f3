"""Tests of the benchmark: what it measures with, and what it makes of it."""
