"""Fixtures of the io tests: filesystems to move bytes on."""

from tests.filesystems import mounts, session_mounts

__all__ = ["mounts", "session_mounts"]
