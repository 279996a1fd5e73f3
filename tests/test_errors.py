"""Errors cross from rank to rank with all they know, and are caught by the built-in they stand for.

Method: one sample of each class with every attribute set, through pickle and `copy`.
"""

from __future__ import annotations

import copy
import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp_gds import errors
from dcp_gds.errors import (
    CheckpointExistsError,
    ConfigError,
    CorruptCheckpointError,
    DcpGdsError,
    NotCommittedError,
    StorageFullError,
    TransferError,
    UnsupportedError,
)

PATH = Path("checkpoint/__0_0.distcp")
SAMPLES: list[DcpGdsError] = [
    CheckpointExistsError(PATH),
    CheckpointExistsError(PATH, "another message"),
    ConfigError("queue_depth is 0; expected 1 to 256"),
    CorruptCheckpointError("stored CRC-32 1, computed 2", PATH, offset=4096, fqn="layer.weight"),
    CorruptCheckpointError("no offset and no name", PATH),
    CorruptCheckpointError("no path"),
    DcpGdsError("a message"),
    NotCommittedError(PATH),
    NotCommittedError(PATH, "another message"),
    StorageFullError(errno.ENOSPC, "No space left on device", PATH, needed=1 << 40, free=4096),
    StorageFullError(errno.EDQUOT, "Disk quota exceeded", PATH),
    TransferError(errno.EIO, "Input/output error", PATH, offset=8192, length=4096, done=512),
    TransferError(errno.EBADF, "Bad file descriptor", PATH),
    UnsupportedError("direct I/O is not honoured on tmpfs"),
]
BUILT_IN = {
    CheckpointExistsError: FileExistsError,
    ConfigError: ValueError,
    NotCommittedError: FileNotFoundError,
    StorageFullError: TransferError,
    TransferError: OSError,
}


def by_pickle(error: DcpGdsError) -> object:
    return pickle.loads(pickle.dumps(error))


def facts(error: DcpGdsError) -> dict[str, object]:
    """What a handler can read of an error."""
    known: dict[str, object] = {"args": error.args, "text": str(error), "own": vars(error)}
    if isinstance(error, OSError):
        known |= {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
    return known


def test_every_class_has_a_sample() -> None:
    assert {type(sample).__name__ for sample in SAMPLES} == set(errors.__all__)


@pytest.mark.parametrize("again", [by_pickle, copy.copy])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_crosses_whole(
    sample: DcpGdsError, again: Callable[[DcpGdsError], object]
) -> None:
    crossed = again(sample)
    assert type(crossed) is type(sample)
    assert isinstance(crossed, DcpGdsError)
    assert facts(crossed) == facts(sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_caught_by_what_it_stands_for(sample: DcpGdsError) -> None:
    assert isinstance(sample, DcpGdsError)
    assert isinstance(sample, BUILT_IN.get(type(sample), Exception))


@pytest.mark.parametrize(
    ("sample", "facts_in_text"),
    [
        (SAMPLES[3], ["layer.weight", str(PATH), "4096", "stored CRC-32 1, computed 2"]),
        (SAMPLES[9], [str(PATH), "No space left", f"needed {1 << 40} bytes", "free 4096"]),
        (SAMPLES[11], [str(PATH), "Input/output error", "[8192, 12288)", "512 done"]),
        (SAMPLES[0], [str(PATH), "overwrite=True"]),
        (SAMPLES[7], [str(PATH), ".metadata is missing"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, DcpGdsError) else "",
)
def test_an_error_reads_as_path_extent_and_cause(
    sample: DcpGdsError, facts_in_text: list[str]
) -> None:
    for fact in facts_in_text:
        assert fact in str(sample)
