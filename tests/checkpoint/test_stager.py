"""Staging copies what may change and refuses what a copy would spoil: states change after it."""

from __future__ import annotations

import io
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import UnsupportedError
from tests.checkpoint.refusal import refused
from tests.checkpoint.storage import dcp_load


class Tagged(torch.Tensor):
    """A subclass that staging would silently turn into a plain tensor."""


def saved(state: dict[str, Any], writer: GDSWriter) -> None:
    cast("Future[object]", async_save(state, storage_writer=writer, no_dist=True)).result(300)


def test_a_subclass_is_refused_as_in_a_synchronous_save(tmp_path: Path) -> None:
    state = {"good": torch.ones(3), "bad": [torch.ones(3).as_subclass(Tagged)]}
    with GDSWriter(tmp_path) as writer, refused(UnsupportedError, "bad.0", "Tagged"):
        saved(state, writer)
    assert not (tmp_path / ".metadata").exists()


def test_the_writer_is_usable_after_a_refusal(tmp_path: Path) -> None:
    with GDSWriter(tmp_path) as writer:
        with refused(UnsupportedError, "bad"):
            saved({"bad": torch.ones(3).to_sparse()}, writer)
        saved({"good": torch.ones(3)}, writer)
        assert writer.report is not None
        assert writer.report.committed
    target = {"good": torch.zeros(3)}
    dcp_load(target, storage_reader=GDSReader(tmp_path), no_dist=True)
    assert torch.equal(target["good"], torch.ones(3))


def test_bytes_are_copied_too() -> None:
    state = {"nested": [io.BytesIO(b"old"), ({"deep": io.BytesIO(b"old")},)], "number": 3}
    state["nested"][0].seek(2)  # type: ignore[index]  # a list
    staged: Any = GDSWriter("unused").stage(state)
    nested: Any = state["nested"]
    for stream in (nested[0], nested[1][0]["deep"]):
        stream.seek(0)
        stream.write(b"NEW")
    assert staged["nested"][0].getvalue() == b"old"
    assert staged["nested"][0].tell() == 2
    assert staged["nested"][1][0]["deep"].getvalue() == b"old"
    assert staged["number"] == 3


def test_closing_the_writer_does_not_disturb_a_save(tmp_path: Path) -> None:
    state = {f"w{index}": torch.full((300_000,), float(index)) for index in range(8)}
    writer: list[GDSWriter] = []
    writer.append(GDSWriter(tmp_path, progress=lambda done, total: writer[0].close()))
    saved(state, writer[0])
    target = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp_load(target, storage_reader=GDSReader(tmp_path), no_dist=True)
    assert all(torch.equal(target[name], state[name]) for name in state)


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer])
def test_parameters_and_buffers_are_staged(kind: Any, tmp_path: Path) -> None:
    with GDSWriter(tmp_path) as writer:
        saved({"x": kind(torch.ones(3))}, writer)
