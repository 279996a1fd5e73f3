"""Fixtures of the tests of preflight: real filesystems."""

from tests.filesystems import mounts, session_mounts

__all__ = ["mounts", "session_mounts"]
