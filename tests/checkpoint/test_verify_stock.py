"""Stock checkpoints are compared with the CRC-32s that they have, and never called good.

Method: checkpoints of DCP's own writer, whole, with a flip in each part, and through an extension.
"""

from __future__ import annotations

import io
import os
import random
import zipfile
from pathlib import Path

import pytest
import torch

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.zipdirectory import local_header_length
from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.refusal import refused
from tests.checkpoint.samples import LAYOUTS, saveable_dtypes
from tests.checkpoint.shardfiles import Item, flip_bit, items_of
from tests.checkpoint.storage import STOCK, load, save
from tests.checkpoint.test_extensions import FlipExtension
from tests.checkpoint.verifying import damaged, item_named, saved


def test_a_whole_stock_checkpoint_of_every_kind_of_tensor(tmp_path: Path) -> None:
    """Its tensors and most of its byte items have CRC-32s; its metadata have none."""
    dtypes = {str(dtype): dense_tensor((5, 7), dtype) for dtype in saveable_dtypes()}
    tensors = {**dtypes, **{name: make() for name, make in LAYOUTS.items()}}
    save({**tensors, "step": 7}, tmp_path, STOCK)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.UNCHECKED, report
    assert {unchecked.reason for unchecked in report.unchecked} == {
        ".metadata has no checksum",
        "byte items without a footer",
    }
    # What is left are the zip headers of the byte item.
    assert 0 < report.unverified_bytes < item_named(tmp_path, "step").length


def test_a_stock_shard_file_that_is_cut_short(tmp_path: Path) -> None:
    file = saved(tmp_path, STOCK)
    last = items_of(tmp_path)[-1]
    os.truncate(file, file.stat().st_size - 1)
    damaged(tmp_path, f"{last.index.fqn}: ", "the file has")


def named_position(item: Item, name: str) -> int:
    """Where in the file the data of an entry of an item's archive begin."""
    data = item.read()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (info,) = (info for info in archive.infolist() if info.filename.endswith(f"/{name}"))
    return item.offset + info.header_offset + local_header_length(data[info.header_offset :])


@pytest.mark.parametrize("entry", ["data.pkl", "byteorder", "data/0", "version"])
def test_a_flip_in_each_entry_of_an_archive(entry: str, tmp_path: Path) -> None:
    file = saved(tmp_path, STOCK)
    flip_bit(file, offset=named_position(item_named(tmp_path, "w"), entry) + 1, bit=1)
    damaged(tmp_path, "w: ", file)


def test_a_flip_in_a_byte_item(tmp_path: Path) -> None:
    file = saved(tmp_path, STOCK)
    flip_bit(file, offset=named_position(item_named(tmp_path, "names"), "data.pkl") + 9)
    damaged(tmp_path, "names: payload", file)


def test_a_byte_item_that_is_no_archive(tmp_path: Path) -> None:
    """Whether it ever was one cannot be told: none of it is called verified."""
    file = saved(tmp_path, STOCK)
    before = verify_checkpoint(tmp_path)
    item = item_named(tmp_path, "names")
    flip_bit(file, offset=item.offset + item.length - 20)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.UNCHECKED
    assert before.unverified_bytes < item.length
    assert report.unverified_bytes >= item.length


@pytest.mark.parametrize("seed", range(2))
def test_a_flip_anywhere_in_a_payload(seed: int, tmp_path: Path) -> None:
    file = saved(tmp_path, STOCK)
    draw = random.Random(seed)
    for fqn, length in (("large", 5 << 20), ("w", 4800), ("packed", 3200)):
        start = named_position(item_named(tmp_path, fqn), "data/0")
        offset, bit = start + draw.randrange(length), draw.randrange(8)
        flip_bit(file, offset=offset, bit=bit)
        damaged(tmp_path, f"{fqn}: payload", file)
        flip_bit(file, offset=offset, bit=bit)


def test_items_behind_an_extension(tmp_path: Path) -> None:
    save(
        {"x": dense_tensor((50, 7), torch.float32)}, tmp_path, STOCK, _extensions=[FlipExtension()]
    )
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.UNCHECKED
    assert report.verified_bytes == 0
    assert "items behind stream extensions" in {unchecked.reason for unchecked in report.unchecked}


def test_a_load_does_not_believe_a_damaged_pickle(tmp_path: Path) -> None:
    """torch compares no CRC-32: it would take the changed size or stride for what was saved."""
    file = saved(tmp_path, STOCK)
    start = named_position(item_named(tmp_path, "w"), "data.pkl")
    with file.open("rb") as stream:
        stream.seek(start)
        position = stream.read(200).index(b"K\x1eK\x28")  # 30, 40
    flip_bit(file, offset=start + position + 1)
    targets = {"w": filled_tensor((30, 40), torch.float32)}
    before = raw(targets["w"])
    with refused(CorruptCheckpointError, "w: ", "data.pkl"):
        load(dict(targets), tmp_path)
    assert raw(targets["w"]) == before
