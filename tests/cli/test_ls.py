"""`dcp-gds ls` tells what is in a checkpoint and where, whoever wrote it.

Method: save known states by GDSWriter and by stock DCP, and take the places that the listing names
back out of the shard files as archives of torch.save.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dcp_gds.cli.listing import Entry, read_listings
from dcp_gds.cli.main import main
from dcp_gds.errors import CorruptCheckpointError, NotCommittedError, TransferError
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_save, save
from tests.ranks import Ranks

WRITERS = pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable")


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


def sample_state() -> dict[str, Any]:
    return {
        "weights": torch.arange(3000, dtype=torch.float32).reshape(30, 100),
        "nested": {"scale": torch.tensor(0.5, dtype=torch.bfloat16)},
        "empty": torch.zeros(0, 5),
        "step": 41,
    }


def save_rows(path: Path, storage: Storage) -> None:
    """Save a tensor of five rows on two ranks."""
    mesh = init_device_mesh("cpu", (2,))
    rows = torch.arange(500, dtype=torch.int64).reshape(5, 100)
    state = {"rows": distribute_tensor(rows, mesh, [Shard(0)], src_data_rank=None)}
    dcp_save(state, storage_writer=storage.writer(path))


def save_by_rank(path: Path, storage: Storage) -> None:
    """Save a tensor on each rank by itself."""
    own = torch.full((10, dist.get_rank() + 1), 7, dtype=torch.int16)
    with warnings.catch_warnings():
        # Stock DCP takes the other rank's checkpoint for one that it overwrites.
        warnings.filterwarnings("ignore", "Detected an existing checkpoint")
        dcp_save({"own": own}, storage_writer=storage.writer(path), use_collectives=False)


def stored_tensor(path: Path, entry: Entry) -> torch.Tensor:
    """What lies where an entry says."""
    data = (path / entry.file).read_bytes()[entry.offset : entry.offset + entry.length]
    tensor: torch.Tensor = torch.load(io.BytesIO(data), weights_only=True)
    return tensor


@WRITERS
def test_entries_are_where_they_are_said_to_be(storage: Storage, tmp_path: Path) -> None:
    state = sample_state()
    save(state, tmp_path, storage)
    [listing] = read_listings(tmp_path)
    entries = {entry.fqn: entry for entry in listing.entries}
    assert list(entries) == ["empty", "nested.scale", "step", "weights"]
    for fqn, tensor in (
        ("weights", state["weights"]),
        ("nested.scale", state["nested"]["scale"]),
        ("empty", state["empty"]),
    ):
        entry = entries[fqn]
        assert torch.equal(stored_tensor(tmp_path, entry), tensor)
        assert entry.dtype == str(tensor.dtype).removeprefix("torch.")
        assert entry.tensor_shape == entry.shape == tuple(tensor.shape)
        assert entry.chunk_offsets == (0,) * tensor.dim()
        assert entry.bytes == tensor.nbytes < entry.length
    step = entries["step"]
    assert (step.dtype, step.shape, step.bytes) == ("bytes", None, step.length)
    data = (tmp_path / step.file).read_bytes()
    assert torch.load(io.BytesIO(data[step.offset :][: step.length]), weights_only=True) == 41
    assert listing.bytes == 12000 + 2 + 0 + step.length
    assert (listing.token is not None) == (storage is OURS)


@WRITERS
def test_chunks_of_a_tensor_are_listed_each(two: Ranks, storage: Storage, tmp_path: Path) -> None:
    two.run(save_rows, tmp_path, storage)
    [listing] = read_listings(tmp_path)
    assert [(entry.shape, entry.chunk_offsets) for entry in listing.entries] == [
        ((3, 100), (0, 0)),
        ((2, 100), (3, 0)),
    ]
    assert {entry.tensor_shape for entry in listing.entries} == {(5, 100)}
    assert len(listing.files) == 2
    whole = torch.cat([stored_tensor(tmp_path, entry) for entry in listing.entries])
    assert torch.equal(whole, torch.arange(500).reshape(5, 100))


@WRITERS
def test_ranks_that_saved_by_themselves_are_listed_each(
    two: Ranks, storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two.run(save_by_rank, tmp_path, storage)
    listings = read_listings(tmp_path)
    assert [listing.metadata_file for listing in listings] == ["__0.metadata", "__1.metadata"]
    for rank, listing in enumerate(listings):
        [entry] = listing.entries
        assert stored_tensor(tmp_path, entry).shape == (10, rank + 1) == entry.shape
    assert read_listings(tmp_path / "__1.metadata") == listings[1:]
    assert main(["ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "__0.metadata:"
    assert lines[-1].startswith("2 ranks: 2 items, 60 bytes")
    assert "in 2 files" in lines[-1]


@WRITERS
def test_text_has_a_line_for_each_item_and_a_total(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(sample_state(), tmp_path, storage)
    [listing] = read_listings(tmp_path)
    assert main(["ls", str(tmp_path)]) == 0
    heading, *lines, total = capsys.readouterr().out.splitlines()
    assert heading.split() == ["FQN", "DTYPE", "SHAPE", "AT", "BYTES", "FILE", "OFFSET"]
    weights = listing.entries[-1]
    assert lines[-1].split() == [
        *("weights", "float32", "[30,100]", "[0,0]", "12000"),
        *(weights.file, str(weights.offset)),
    ]
    assert lines[0].split()[:5] == ["empty", "float32", "[0,5]", "[0,0]", "0"]
    assert lines[1].split()[:5] == ["nested.scale", "bfloat16", "[]", "[]", "2"]
    assert lines[2].split()[:4] == ["step", "bytes", "-", "-"]
    # Numbers end in one column, so that the eye can compare them.
    assert len({len(line[: line.index(weights.file)].rstrip()) for line in lines}) == 1
    assert total.startswith(f"4 items, {listing.bytes} bytes (0.0 MB) in 1 file, written by ")
    assert total.endswith("another writer than dcp_gds" if storage is STOCK else str(listing.token))


def test_json_holds_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(sample_state(), tmp_path)
    [listing] = read_listings(tmp_path)
    assert main(["ls", "--json", str(tmp_path)]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["bytes"] == listing.bytes
    [metadata] = value["metadata"]
    assert metadata["token"] == listing.token
    assert metadata["files"] == sorted(listing.files)
    last = metadata["entries"][-1]
    assert (last["fqn"], last["bytes"], last["shape"]) == ("weights", 12000, [30, 100])
    assert (last["file"], last["offset"]) == (listing.entries[-1].file, listing.entries[-1].offset)


def test_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(b"left by a save that was killed")
    with pytest.raises(NotCommittedError, match="no committed checkpoint"):
        read_listings(tmp_path)
    with pytest.raises(TransferError, match="No such file"):
        read_listings(tmp_path / "missing")
    assert main(["ls", str(tmp_path)]) == 2


def test_unreadable_metadata_are_an_error(tmp_path: Path) -> None:
    save({"x": torch.ones(2)}, tmp_path)
    metadata = tmp_path / ".metadata"
    metadata.rename(tmp_path / "moved")
    metadata.symlink_to("/proc/self/mem")
    with pytest.raises(TransferError):
        read_listings(tmp_path)


@pytest.mark.parametrize("kept", [0, 20, -40])
def test_cut_metadata_are_an_error(kept: int, tmp_path: Path) -> None:
    save({"x": torch.ones(2)}, tmp_path)
    metadata = tmp_path / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:kept])
    with pytest.raises(CorruptCheckpointError):
        read_listings(tmp_path)


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Replace fields of a stock checkpoint's metadata."""
    metadata: Metadata = pickle.loads((path / ".metadata").read_bytes())
    vars(metadata).update(change)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def test_item_without_a_place_is_named(tmp_path: Path) -> None:
    save({"x": torch.ones(2)}, tmp_path, STOCK)
    rewrite(tmp_path, {"storage_data": {}})
    with pytest.raises(CorruptCheckpointError, match="x: the metadata do not say where"):
        read_listings(tmp_path)


def test_foreign_class_is_named_and_may_be_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save({"x": torch.ones(2)}, tmp_path, STOCK)
    rewrite(tmp_path, {"planner_data": PlannerData()})
    name = f"{PlannerData.__module__}.PlannerData"
    assert main(["ls", str(tmp_path)]) == 2
    assert name in capsys.readouterr().err
    assert main(["ls", "--allow", name, str(tmp_path)]) == 0


class PlannerData:
    """What a custom planner keeps in the metadata."""


def test_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save({"x": torch.ones(2)}, tmp_path, STOCK)
    metadata: Metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    [place] = metadata.storage_data.values()
    name = "x\x1b[2Jy\n"
    rewrite(
        tmp_path,
        {
            "state_dict_metadata": {name: metadata.state_dict_metadata["x"]},
            "storage_data": {MetadataIndex(name, [0]): place},
        },
    )
    assert main(["ls", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[1].startswith("x\\x1b[2Jy\\n ")
