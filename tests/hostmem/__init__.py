"""Tests of host memory: what the kernel tells, what is made of it, and what a save needs."""
