"""Faults that are caused on purpose, and what became of the checkpoint."""
