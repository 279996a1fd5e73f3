"""Tensors of every layout come back bit for bit, into targets of every layout.

Method: views, strides and kinds of tensors saved and loaded by ours and by DCP's own storage; the
archives that a process without dcp_gds reads are equal to those that DCP itself writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoint.conftest import ArchiveKey
from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.samples import LAYOUTS, TARGETS
from tests.checkpoint.stock_reader import Archive, Loaded
from tests.checkpoint.storage import OURS, STOCK, Storage, load, save


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ours_to_stock(
    layout: str, tmp_path: Path, stock_load: Callable[[Path], dict[str, object]]
) -> None:
    source = LAYOUTS[layout]()
    save({"x": source}, tmp_path)
    assert stock_load(tmp_path) == {
        "x": Loaded(str(source.dtype), tuple(source.shape), raw(source))
    }


@pytest.mark.parametrize("saver", [STOCK, OURS], ids=lambda storage: f"{storage.name}-ours")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_ours(layout: str, saver: Storage, tmp_path: Path) -> None:
    source = LAYOUTS[layout]()
    target = filled_tensor(source.shape, source.dtype)
    save({"x": source}, tmp_path, saver)
    load({"x": target}, tmp_path)
    assert raw(target) == raw(source)


def is_plain_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes, in some order, are all of one range and are its values."""
    plain = not (tensor.is_conj() or tensor.is_neg())
    return plain and torch.empty_like(tensor).stride() == tensor.stride()


def test_the_archives_are_those_dcp_writes(
    tmp_path: Path, stock_archives: Callable[[Path], dict[ArchiveKey, Archive]]
) -> None:
    """Of dense tensors to the stride and the last byte; of all others the values."""
    state = {layout: maker() for layout, maker in LAYOUTS.items()}
    save(dict(state), tmp_path / "ours")
    save(dict(state), tmp_path / "stock", STOCK)
    ours, stock = stock_archives(tmp_path / "ours"), stock_archives(tmp_path / "stock")
    assert ours.keys() == stock.keys()
    for key, archive in ours.items():
        if is_plain_dense(state[key[0]]):
            assert archive == stock[key]
        else:
            assert (archive.dtype, archive.shape, archive.values) == (
                stock[key].dtype,
                stock[key].shape,
                stock[key].values,
            )
        assert len(archive.data) == len(archive.values)


def test_views_of_one_storage(
    tmp_path: Path, stock_load: Callable[[Path], dict[str, object]]
) -> None:
    base = dense_tensor((50_000,), torch.float32)
    state = {
        "whole": base,
        "again": base,
        "head": base[:20_000],
        "middle": base[10_001:40_003],
        "even": base[::2],
        "square": base[:40_000].view(200, 200).t(),
        "bytes": base.view(torch.uint8)[3:1001],
    }
    save(dict(state), tmp_path)
    assert stock_load(tmp_path) == {
        name: Loaded(str(tensor.dtype), tuple(tensor.shape), raw(tensor))
        for name, tensor in state.items()
    }
    targets = {name: filled_tensor(tensor.shape, tensor.dtype) for name, tensor in state.items()}
    load(dict(targets), tmp_path)
    assert {name: raw(tensor) for name, tensor in targets.items()} == {
        name: raw(tensor) for name, tensor in state.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("saver", [STOCK, OURS], ids=lambda storage: storage.name)
@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str, saver: Storage, dtype: torch.dtype, tmp_path: Path) -> None:
    """The whole storage is compared: what lies between the elements of a target stays as it was.

    The values are no NaNs, because torch loses their payloads when it writes into a neg view.
    """
    source = (torch.arange(-20, 28) / 7).view(6, 8).to(dtype)
    save({"x": source}, tmp_path, saver)
    by_ours, by_stock = TARGETS[target](dtype), TARGETS[target](dtype)
    load({"x": by_ours}, tmp_path)
    load({"x": by_stock}, tmp_path, STOCK)
    assert bytes(by_ours.untyped_storage()) == bytes(by_stock.untyped_storage())
    assert raw(by_ours) == raw(source)
    assert by_ours.requires_grad == by_stock.requires_grad


@pytest.mark.parametrize("saver", [STOCK, OURS], ids=lambda storage: storage.name)
@pytest.mark.parametrize("layout", ["transposed", "columns", "conj", "neg", "expanded"])
def test_layout_into_layout(layout: str, saver: Storage, tmp_path: Path) -> None:
    source = LAYOUTS[layout]()
    rows, columns = source.shape
    target = filled_tensor((columns, 3 * rows), source.dtype)[:, ::3].t()
    save({"x": source}, tmp_path, saver)
    load({"x": target}, tmp_path)
    assert raw(target) == raw(source)


def test_alias_of_the_saved_tensor_is_no_obstacle(tmp_path: Path) -> None:
    """Loading into the very memory that was saved, as a trainer that rolls back does."""
    state = {"x": dense_tensor((999,), torch.float64)}
    expected = raw(state["x"])
    save(state, tmp_path)
    state["x"].zero_()
    load(state, tmp_path)
    assert raw(state["x"]) == expected
