"""An asynchronous save warns on the group that trains, and when it comes near its group's timeout.

Method: real saves of two ranks on the default group and on one of their own, with what the writer
logs; worked seconds at both sides of the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import async_save

from dcp_gds import GDSWriter
from dcp_gds.checkpoint import savegroup
from dcp_gds.checkpoint.savegroup import SaveGroup
from tests.checkpoint.storage import dcp_save
from tests.ranks import Ranks

# A save here takes well under a second; only a hang takes this long.
LIMIT_S = 120.0


class Kept(logging.Handler):
    """Keeps the messages of the package's logger while the block runs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("dcp_gds").addHandler(self)
        return self.messages

    def __exit__(self, *_: object) -> None:
        logging.getLogger("dcp_gds").removeHandler(self)


def warned(path: Path, group: dist.ProcessGroup | None) -> list[str]:
    """What one asynchronous save on a group logs."""
    with Kept() as messages, GDSWriter(path) as writer:
        answer = async_save({"x": torch.ones(9)}, storage_writer=writer, process_group=group)
        cast("Future[Any]", answer).result(LIMIT_S)
    return messages


def save_on_each(path: Path) -> tuple[list[str], list[str], list[str]]:
    own = dist.new_group(backend="gloo", timeout=timedelta(seconds=600))
    with Kept() as synchronous, GDSWriter(path / "synchronous") as writer:
        dcp_save({"x": torch.ones(9)}, storage_writer=writer)
    return warned(path / "default", None), warned(path / "own", own), synchronous


def test_only_the_group_that_trains_is_warned_of(
    tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    for default, own, synchronous in ranks(2).run(save_on_each, tmp_path):
        assert len(default) == 1
        assert default[0].startswith(f"{tmp_path / 'default'}: ")
        assert "default process group" in default[0]
        assert "new_group" in default[0]
        assert own == synchronous == []


def save_near_the_timeout(path: Path) -> list[str]:
    own = dist.new_group(backend="gloo", timeout=timedelta(seconds=600))
    share, savegroup.TIMEOUT_SHARE_MAX = savegroup.TIMEOUT_SHARE_MAX, 0.0
    try:
        return warned(path, own)
    finally:
        savegroup.TIMEOUT_SHARE_MAX = share


def test_the_timeout_is_that_of_the_group(tmp_path: Path, ranks: Callable[[int], Ranks]) -> None:
    for messages in ranks(2).run(save_near_the_timeout, tmp_path):
        assert len(messages) == 1
        assert "give up after 600 s" in messages[0]


@pytest.mark.parametrize(
    ("write_s", "expected"), [(29.9, None), (30.0, "seconds=120"), (59.0, "seconds=236")]
)
def test_half_of_the_timeout_is_near(write_s: float, expected: str | None) -> None:
    message = SaveGroup(is_default=False, timeout_s=60.0).warning_after(write_s=write_s)
    assert message is None if expected is None else message is not None and expected in message


def test_a_timeout_that_is_not_known_warns_of_nothing() -> None:
    assert SaveGroup(is_default=False).warning_after(write_s=1e9) is None


def test_without_peers_there_is_no_group() -> None:
    assert savegroup.find_save_group() is None
