"""The rank harness: ranks form one group, errors come back whole, and no child outlives its group.

Method: small functions that return, raise, die or raise what cannot be pickled, on two real ranks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.ranks import RankError, Ranks, run_on_ranks


class UnpicklableError(Exception):
    """Holds a lock, as an exception with a live handle does."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


def total(value: int) -> tuple[int, int, int]:
    summed = torch.tensor(value + dist.get_rank())
    dist.all_reduce(summed)
    return int(summed), torch.get_num_threads(), os.getpid()


def fail_on_last(kind: str) -> None:
    if dist.get_rank() != dist.get_world_size() - 1:
        return
    if kind == "raise":
        raise KeyError(kind)
    if kind == "unpicklable":
        raise UnpicklableError
    os._exit(7)


def test_one_group_serves_several_calls(two: Ranks) -> None:
    first = two.run(total, 10)
    second = two.run(total, 20)
    assert [result[:2] for result in first] == [(21, 1), (21, 1)]
    assert [result[0] for result in second] == [41, 41]
    assert [result[2] for result in first] == [result[2] for result in second]


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("raise", KeyError, "raise"),
        ("unpicklable", RankError, "holds a lock"),
        ("die", RankError, "exit code 7"),
    ],
)
def test_failure_is_raised_and_the_next_call_works(
    two: Ranks, kind: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        two.run(fail_on_last, kind)
    assert any("rank 1 of 2" in note for note in caught.value.__notes__)
    assert two.run(total, 0)[0][0] == 1


def test_no_child_is_left() -> None:
    pids = [result[2] for result in run_on_ranks(2, total, 1)]
    assert len(set(pids)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
