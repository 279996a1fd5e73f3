"""Save commit: from shard files that are written to the directory's one and only checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.storage import WriteResult

from dcp_gds.checkpoint import commit
from dcp_gds.checkpoint.commitlock import commit_lock
from dcp_gds.checkpoint.leftovers import Removal, leftovers_of, remove_files, shard_files_of
from dcp_gds.checkpoint.writeresult import ShardWriteResult
from dcp_gds.config import WriterOptions
from dcp_gds.errors import UnsupportedError
from dcp_gds.format.metadata import dump_metadata

__all__ = ["commit_save"]


def commit_save(
    directory: Path,
    metadata: Metadata,
    written: Sequence[WriteResult],
    *,
    token: str,
    rank: int | None,
    options: WriterOptions,
) -> Removal:
    """Check that all is there, publish the metadata, and remove what they make superfluous.

    Two saves into one directory are a mistake, and must not end in a checkpoint whose files the
    other has removed: from the last look at the shard files to the last removal the directory is
    locked. Where the filesystem has no such locks, leftovers stay, and only what the replaced
    metadata named is removed.

    Parameters
    ----------
    metadata
        The planner's; filled in here.
    written
        Results of all ranks, or of one.
    rank
        The rank whose own metadata are published; None for those of all.

    Raises
    ------
    UnsupportedError, CorruptCheckpointError, TransferError, CheckpointExistsError, ConfigError
        The save is not committed, what was committed before is untouched, and the shard files are
        removed; but an error of the directory's last sync leaves the new checkpoint in its place.
    """
    shard_files = [
        result.shard_file
        for result in written
        if isinstance(result, ShardWriteResult) and result.shard_file is not None
    ]
    records = tuple(shard_file.record for shard_file in shard_files)
    names = frozenset(record.name for record in records)
    with contextlib.ExitStack() as stack:
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(remove_files, directory, names)
        _check_named(written, names)
        commit.check_complete(metadata, (result.index for result in written))
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for result in written}
        metadata.storage_meta = StorageMeta(checkpoint_id=str(directory), save_id=token)
        data = dump_metadata(metadata, token=token, shard_files=records)
        path = commit.metadata_path(directory, rank=rank)
        locked = stack.enter_context(commit_lock(directory, wait=rank is not None))
        commit.check_replaceable(directory, rank=rank, overwrite=options.overwrite)
        commit.check_shard_files(directory, shard_files)
        replaced = shard_files_of(path) or frozenset()
        # From the rename on the metadata may name the shard files, even if it is said to have
        # failed: a network filesystem may have done it, or do it later. So they are left then, to
        # the next save.
        commit.publish(path, data, token=token, sync=options.sync, before_rename=undo.pop_all)
        superfluous = replaced - names
        if locked:
            with contextlib.suppress(OSError):
                superfluous |= leftovers_of(directory, rank=rank) or frozenset()
        return remove_files(directory, superfluous)


def _check_named(written: Sequence[WriteResult], names: frozenset[str]) -> None:
    """Refuse results that point to files of which nothing else is known, or to none."""
    for result in written:
        name = getattr(result.storage_data, "relative_path", None)
        if name not in names:
            raise UnsupportedError(
                f"{result.index.fqn}: its write result names {name!r}, which no GDSWriter says it"
                " wrote: every rank has to save with a GDSWriter; the checkpoint is not committed"
            )
