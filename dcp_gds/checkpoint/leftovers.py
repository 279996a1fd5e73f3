"""Leftovers: files that a save which was killed, or failed on another rank, has left behind.

They are known by their names alone, which hold the token of their save, and by no metadata naming
them. Nothing else in the directory is ever taken for one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.checkpoint.shardpath import shard_path
from dcp_gds.errors import CorruptCheckpointError, DcpGdsError
from dcp_gds.format.metadata import load_metadata, safe_relative_path, split_metadata

__all__ = ["Removal", "leftovers_of", "remove_files", "shard_files_of"]

_SHARD_FILE = re.compile(r"__(?P<rank>[0-9]+)_[0-9]+-[0-9a-f]{32}\.distcp")
# Metadata under the name that they have before they are renamed, of all ranks or of one.
_TEMPORARY = re.compile(r"(?:__(?P<rank>[0-9]+))?\.metadata-[0-9a-f]{32}\.tmp")
# What a load might read: wider than the names that are written, since it protects files.
_METADATA = re.compile(r"(?:__.*)?\.metadata")


@dataclass(frozen=True, slots=True)
class Removal:
    """How many files a commit has removed, and how many of those to remove are still there."""

    removed: int = 0
    kept: int = 0


def shard_files_of(path: Path) -> frozenset[str] | None:
    """Names of the shard files that a metadata file refers to; None if it cannot be read.

    A file that is not there refers to none.
    """
    try:
        pickled, trailer = split_metadata(_content(path), path=path)
        if trailer is not None:
            return frozenset(record.name for record in trailer.shard_files)
        storage = load_metadata(bytes(pickled), path=path).storage_data or {}
        return frozenset(
            safe_relative_path(info.relative_path, path=path) for info in storage.values()
        )
    except FileNotFoundError:
        return frozenset()
    except (OSError, DcpGdsError):
        return None


def leftovers_of(directory: Path, *, rank: int | None) -> frozenset[str] | None:
    """Names of the regular files in a directory that earlier saves have left behind.

    Parameters
    ----------
    rank
        Only those of one rank, where ranks do not work together and others may be saving; None for
        all.

    Returns
    -------
    frozenset[str] | None
        None if that cannot be known: a metadata file cannot be read, and may name any file.

    Raises
    ------
    OSError
        If the directory cannot be listed.
    """
    found: set[str] = set()
    named: set[str] = set()
    with os.scandir(directory) as entries:
        for entry in entries:
            if _METADATA.fullmatch(entry.name):
                names = shard_files_of(Path(entry.path))
                if names is None:
                    return None
                named |= names
            elif _is_leftover_name(entry.name, rank=rank) and entry.is_file(follow_symlinks=False):
                found.add(entry.name)
    return frozenset(found - named)


def remove_files(directory: Path, names: Iterable[str]) -> Removal:
    """Remove files that nothing refers to any more.

    The new checkpoint is committed already: a file that cannot be removed costs room and nothing
    else, so it is counted and no error.
    """
    removed = kept = 0
    for name in sorted(names):
        try:
            shard_path(directory, name).unlink()
        except FileNotFoundError:
            continue
        except (OSError, CorruptCheckpointError):
            kept += 1
        else:
            removed += 1
    return Removal(removed, kept)


def _is_leftover_name(name: str, *, rank: int | None) -> bool:
    """Whether a name is one that a save gives to a file before anything refers to it."""
    match = _SHARD_FILE.fullmatch(name) or _TEMPORARY.fullmatch(name)
    return match is not None and (rank is None or match["rank"] == str(rank))


def _content(path: Path) -> bytes:
    """Content of a file. Opening a FIFO would wait for its writer; regular files never do."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()
