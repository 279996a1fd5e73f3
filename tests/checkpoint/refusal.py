"""Refusal: an error of ours that came through DCP, taken out of its wrapping and checked."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.distributed.checkpoint.api import CheckpointException

__all__ = ["Refusal", "refused", "snapshot", "unwrapped"]


@dataclass(slots=True)
class Refusal:
    """The error that `refused` caught; there once its block has ended."""

    error: BaseException | None = None


@contextmanager
def refused(kind: type[BaseException], *texts: object) -> Iterator[Refusal]:
    """Expect an error of `kind` whose text has all of `texts`, wrapped by DCP or not.

    Every error must survive pickling, since DCP sends errors between ranks.
    """
    refusal = Refusal()
    with pytest.raises((kind, CheckpointException)) as caught:
        yield refusal
    refusal.error = unwrapped(caught.value)
    assert isinstance(refusal.error, kind), repr(refusal.error)
    for text in texts:
        assert str(text) in str(refusal.error)
    again = pickle.loads(pickle.dumps(refusal.error))
    assert type(again) is type(refusal.error)
    assert str(again) == str(refusal.error)
    assert vars(again) == vars(refusal.error)


def unwrapped(error: BaseException) -> BaseException:
    """The error of the lowest failed rank, if DCP wrapped it."""
    if not isinstance(error, CheckpointException):
        return error
    rank = min(error.failures)
    return error.failures[rank][0]


def snapshot(path: Path) -> dict[str, bytes]:
    """Names and contents of all files below `path`."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }
