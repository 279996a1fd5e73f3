"""Preflight: what this node can do for a path, found out with the standard library alone."""
