"""A save in the background has ended when the wait for it ends, however that ends.

Method: an interruption where the wait begins; a save that fails.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.storage import StorageWriter

from dcp_gds.benchmark import solo
from dcp_gds.benchmark.solo import make_state
from dcp_gds.checkpoint.writer import GDSWriter

MIB = 1 << 20


@pytest.mark.parametrize("make", [GDSWriter, FileSystemWriter])
def test_an_interrupted_wait_leaves_no_save_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: type[StorageWriter]
) -> None:
    waits: list[bool] = []

    def result(self: Future[Any], timeout: float | None = None) -> Any:
        waits.append(self.done())
        raise KeyboardInterrupt

    state = make_state(length=32 * MIB, tensors=4)
    writer: StorageWriter = make(tmp_path / "checkpoint")  # type: ignore[call-arg]
    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", result)
        with pytest.raises(KeyboardInterrupt):
            solo.async_save(state, writer)
    assert waits
    assert (tmp_path / "checkpoint" / ".metadata").exists()


def test_tensors_share_memory_where_there_is_little() -> None:
    state = make_state(length=16 * MIB, tensors=16, memory_bytes=3 * MIB)
    assert sum(tensor.nbytes for tensor in state.values()) == 16 * MIB
    assert len({tensor.data_ptr() for tensor in state.values()}) == 3
    assert len({tensor.data_ptr() for tensor in make_state(length=MIB, tensors=4).values()}) == 4
