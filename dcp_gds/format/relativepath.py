"""Relative path: the name of a shard file in a metadata file, refused where it leads elsewhere."""

from __future__ import annotations

import os

from dcp_gds.errors import CorruptCheckpointError

__all__ = ["safe_relative_path"]


def safe_relative_path(name: str, *, path: str | os.PathLike[str]) -> str:
    r"""Return the name if, joined to a directory, it names something below that directory.

    Backslashes are refused as well: no checkpoint has them, and `..\` means another directory on
    a system that may have mounted the same files. Links are none of its business: shard files are
    opened without following one.

    Parameters
    ----------
    name
        As the metadata file has it.
    path
        The metadata file, for the message.

    Raises
    ------
    CorruptCheckpointError
        If the name is empty, absolute, not printable, or has a part that is empty, `.` or `..`.
    """
    parts = name.split("/")
    # isprintable() is false for NUL, line breaks, and surrogates, which no file name can encode.
    if not name.isprintable() or "\\" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise CorruptCheckpointError(
            f"{name!r} does not name a shard file below the checkpoint's directory", path
        )
    return name
