"""What a save makes has the permissions that the umask leaves, and no others.

Method: whole saves under several umasks, by each engine, synchronous and not, over an old
checkpoint and to directories that were missing; the mode of each is compared.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from dcp_gds import GDSWriter
from tests.checkpoint.storage import save

MODES = pytest.mark.parametrize(
    ("umask", "directory", "file"),
    [(0o000, 0o777, 0o666), (0o027, 0o750, 0o640), (0o077, 0o700, 0o600)],
    ids=["000", "027", "077"],
)
LIMIT_S = 120.0
STATE = {"large": torch.ones(300_000), "small": torch.ones(3), "epoch": 1}


@contextmanager
def masked(umask: int) -> Iterator[None]:
    """Another umask, of the whole process."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def modes_in(path: Path) -> dict[str, int]:
    """Permissions of what there is below a path, by its name without a save's token."""
    return {
        str(file.relative_to(path)).split("-")[0]: stat.S_IMODE(file.lstat().st_mode)
        for file in path.rglob("*")
    }


def expected(directory: int, file: int) -> dict[str, int]:
    return {
        "run": directory,
        "run/step": directory,
        "run/step/.metadata": file,
        "run/step/__0_0": file,
    }


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("engine", ["auto", "buffered"])
@MODES
def test_a_save(
    umask: int, directory: int, file: int, engine: str, sync: bool, tmp_path: Path
) -> None:
    with masked(umask):
        save(dict(STATE), tmp_path / "run" / "step", engine=engine, sync=sync)
    assert modes_in(tmp_path) == expected(directory, file)


@MODES
def test_a_save_over_an_old_checkpoint(
    umask: int, directory: int, file: int, tmp_path: Path
) -> None:
    """The new files have what the umask leaves now; the directory stays as it was made."""
    with masked(0o022):
        save(dict(STATE), tmp_path / "run" / "step")
    assert modes_in(tmp_path) == expected(0o755, 0o644)
    with masked(umask):
        save(dict(STATE), tmp_path / "run" / "step", overwrite=True)
    assert modes_in(tmp_path) == expected(0o755, file)


@MODES
def test_an_asynchronous_save(umask: int, directory: int, file: int, tmp_path: Path) -> None:
    with masked(umask), GDSWriter(tmp_path / "run" / "step") as writer:
        response = async_save(dict(STATE), storage_writer=writer)
        assert isinstance(response, Future)
        response.result(LIMIT_S)
    assert modes_in(tmp_path) == expected(directory, file)
