"""Commit: the steps that make a checkpoint appear in its directory at once, or not at all.

A checkpoint is committed by renaming `.metadata`. Everything that it names has been synced before,
under file names that no earlier checkpoint uses; so at every moment the directory holds the old
checkpoint or the new one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from dcp_gds.checkpoint.directory import sync_directory
from dcp_gds.errors import (
    CheckpointExistsError,
    ConfigError,
    CorruptCheckpointError,
    UnsupportedError,
)
from dcp_gds.format.metadata import ShardFileRecord
from dcp_gds.io.fileerror import step_error
from dcp_gds.io.shardfile import remove_file

__all__ = [
    "ShardFileResult",
    "call_back",
    "check_complete",
    "check_replaceable",
    "check_shard_files",
    "metadata_path",
    "publish",
]


@dataclass(frozen=True, slots=True)
class ShardFileResult:
    """What a rank tells the coordinator about a shard file it wrote."""

    record: ShardFileRecord
    rank: int
    host: str


def metadata_path(directory: Path, *, rank: int | None) -> Path:
    """Path of the checkpoint's metadata file, or one rank's when ranks do not work together."""
    return directory / (".metadata" if rank is None else f"__{rank}.metadata")


def check_replaceable(directory: Path, *, rank: int | None, overwrite: bool) -> None:
    """Refuse a save that would replace a checkpoint unasked, or that no load would find.

    Raises
    ------
    CheckpointExistsError
        If there are committed metadata and `overwrite` is False.
    ConfigError
        If rank-local metadata would be written beside a `.metadata`, which every load prefers.
    TransferError
        If it cannot be known what is there.
    """
    common = metadata_path(directory, rank=None)
    if rank is not None and overwrite and _is_there(common):
        raise ConfigError(
            f"{directory} holds a checkpoint of ranks that worked together, which loads would go"
            " on to find: save without collectives to another directory"
        )
    if overwrite:
        return
    # Without collectives another rank may have committed its part of this save already.
    own = _rank_metadata(directory) if rank is None else [metadata_path(directory, rank=rank)]
    if any(map(_is_there, [common, *own])):
        raise CheckpointExistsError(directory)


def check_complete(metadata: Metadata, written: Iterable[MetadataIndex]) -> None:
    """Compare what was written with what the checkpoint promises.

    An item that several ranks have written is complete: a planner need not remove duplicates.

    Raises
    ------
    UnsupportedError
        If an item is missing, or one was written that no load would find; names it.
    """
    written = set(written)
    unknown = set(written)
    for fqn, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            expected = [MetadataIndex(fqn, chunk.offsets) for chunk in entry.chunks]
        else:
            expected = [MetadataIndex(fqn)]
        for index in expected:
            if index not in written:
                raise UnsupportedError(
                    f"{fqn}: the plan has an item at offset {index.offset} that no rank wrote; the"
                    " checkpoint is not committed"
                )
        unknown.difference_update(expected)
    for index in unknown:
        raise UnsupportedError(
            f"{index.fqn}: a rank wrote an item at offset {index.offset} that is not in the"
            " planner's metadata, so no load would find it; the checkpoint is not committed"
        )


def check_shard_files(directory: Path, results: Iterable[ShardFileResult]) -> None:
    """Make sure that the coordinator sees every shard file, with its length.

    Raises
    ------
    CorruptCheckpointError
        If one is missing or has another length: names rank, host and path.
    """
    for result in results:
        path = directory / result.record.name
        try:
            length: int | None = path.lstat().st_size
        except FileNotFoundError:
            length = None
        except OSError as error:
            raise step_error(error, "look at a shard file", path) from error
        if length != result.record.length:
            seen = "no such file" if length is None else f"{length} bytes"
            raise CorruptCheckpointError(
                f"rank {result.rank} on host {result.host} wrote {result.record.length} bytes,"
                f" the coordinator on host {socket.gethostname()} sees {seen}: all ranks have to"
                " save to a directory that they share; on node-local drives save one checkpoint"
                " per node; and no other save may go to the same directory meanwhile",
                path,
            )


def publish(
    path: Path,
    data: bytes,
    *,
    token: str,
    sync: bool,
    before_rename: Callable[[], object] = lambda: None,
) -> None:
    """Write a metadata file under a temporary name and rename it over `path`.

    Parameters
    ----------
    before_rename
        Called when all is ready for the rename.

    Raises
    ------
    TransferError
        With errno and path. The old file, if there was one, is untouched unless the rename was
        done.
    """
    temporary = path.with_name(f"{path.name}-{token}.tmp")
    try:
        with contextlib.ExitStack() as undo:
            fd = os.open(
                temporary,
                os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o666,
            )
            undo.callback(remove_file, temporary)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            before_rename()
            temporary.rename(path)
            undo.pop_all()
    except OSError as error:
        raise step_error(error, "publish the metadata", path) from error
    if sync:
        sync_directory(path.parent)


def call_back(on_commit: Callable[[Path], None], directory: Path) -> None:
    """Tell the caller of the commit; an error of theirs does not undo it, and is a warning."""
    try:
        on_commit(directory)
    except Exception as error:  # noqa: BLE001  # theirs may be anything, and all ranks would fail
        warnings.warn(
            f"{directory} is committed, but on_commit raised {error!r}", UserWarning, stacklevel=3
        )


def _is_there(path: Path) -> bool:
    """Whether something has this path. `os.path.lexists` says no where the kernel fails."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise step_error(error, "look for a checkpoint", path) from error
    return True


def _rank_metadata(directory: Path) -> list[Path]:
    """Metadata files of ranks. `Path.glob` leaves out, unsaid, what it cannot list."""
    try:
        return [path for path in directory.iterdir() if path.match("__*.metadata")]
    except OSError as error:
        raise step_error(error, "look for a checkpoint", directory) from error
