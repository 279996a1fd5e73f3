"""Fixtures of the commands."""

from tests.filesystems import mounts, session_mounts

__all__ = ["mounts", "session_mounts"]
