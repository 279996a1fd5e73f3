"""A whole checkpoint is called good, and whatever can be wrong with its shard files is named.

Method: checkpoints with one thing changed; where a checksum would tell first, it is made right
again.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import KEPT_MAX, Verdict
from dcp_gds.errors import ConfigError, TransferError
from dcp_gds.format.footer import Footer
from dcp_gds.io.checksum import crc32_of_bytes
from tests.checkpoint.rawbytes import dense_tensor
from tests.checkpoint.samples import LAYOUTS, saveable_dtypes
from tests.checkpoint.shardfiles import (
    flip_bit,
    footer_of,
    items_of,
    rewrite_footer,
    rewrite_metadata,
)
from tests.checkpoint.storage import OURS, STOCK, Storage, save
from tests.checkpoint.verifying import (
    both_kinds,
    damaged,
    item_named,
    saved,
    state,
    token_of,
    unreadable,
)

MIB = 1 << 20
W = MetadataIndex("w", torch.Size([0, 0]))


def overwrite(file: Path, offset: int, data: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def test_a_whole_checkpoint_of_every_kind_of_tensor(tmp_path: Path) -> None:
    dtypes = {str(dtype): dense_tensor((5, 7), dtype) for dtype in saveable_dtypes()}
    save({**state(), **dtypes, **{name: make() for name, make in LAYOUTS.items()}}, tmp_path)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.GOOD, report
    assert report.items == len(items_of(tmp_path)) > 50
    assert report.bytes == report.verified_bytes > 5 * MIB
    assert report.bytes_read >= sum(file.stat().st_size for file in tmp_path.glob("*.distcp"))
    assert (report.damages, report.unchecked, report.unreadable) == ((), (), ())
    assert report.metadata_files == (".metadata",)
    assert report.tokens == (token_of(tmp_path),)


@pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)
def test_a_checkpoint_without_checksums(storage: Storage, tmp_path: Path) -> None:
    if storage is OURS:
        saved(tmp_path, checksum=False)
    else:
        compute = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        saved(tmp_path, STOCK)
        torch.serialization.set_crc32_options(compute)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.UNCHECKED
    assert report.verified_bytes == 0
    assert sum(unchecked.bytes for unchecked in report.unchecked) == report.bytes > 5 * MIB
    item = item_named(tmp_path, "w")
    flip_bit(item.file, offset=item.offset + item.length - 1)
    # The archive is looked at all the same.
    damaged(tmp_path, "w")


@both_kinds
def test_fast_leaves_the_payload_out(storage: Storage, tmp_path: Path) -> None:
    file = saved(tmp_path, storage)
    item = item_named(tmp_path, "large")
    flip_bit(file, offset=item.offset + item.length // 2)
    report = verify_checkpoint(tmp_path, fast=True)
    assert report.verdict is Verdict.UNCHECKED
    assert report.verified_bytes == 0
    assert report.bytes_read < MIB
    assert "payload was not read (fast)" in {unchecked.reason for unchecked in report.unchecked}
    damaged(tmp_path, "large", file)
    flip_bit(file, offset=item.offset + item.length - 1)
    assert verify_checkpoint(tmp_path, fast=True).verdict is Verdict.DAMAGED


@pytest.mark.parametrize("part", ["head", "payload", "tail", "pad"])
def test_a_flip_in_each_part_of_an_item(part: str, tmp_path: Path) -> None:
    file = saved(tmp_path)
    large = item_named(tmp_path, "large")
    (entry,) = (entry for entry in footer_of(file).items if entry.extent.offset == large.offset)
    offset = {
        "head": large.offset + 3,
        "payload": entry.payload.offset + 4 * MIB + 5000,
        "tail": entry.payload.end + 30,
        "pad": large.offset - 1,
    }[part]
    flip_bit(file, offset=offset)
    texts = ("zeros between items",) if part == "pad" else (part, "large: ")
    report = damaged(tmp_path, file, *texts)
    # A payload is damaged by the block.
    lost = entry.payload.length - 4 * MIB
    assert report.unverified_bytes == pytest.approx(lost if part == "payload" else 0, abs=4096)
    assert report.damages[0].path == str(file)


def test_a_flip_in_a_byte_item(tmp_path: Path) -> None:
    file = saved(tmp_path)
    item = item_named(tmp_path, "names")
    flip_bit(file, offset=item.offset + 100)
    assert damaged(tmp_path, "names: ", file).unverified_bytes == item.length


def test_all_findings_are_counted_and_some_are_kept(tmp_path: Path) -> None:
    count = KEPT_MAX + 20
    save({f"x{n}": torch.ones(3) for n in range(count)}, tmp_path)
    for item in items_of(tmp_path):
        flip_bit(item.file, offset=item.offset + item.length - 1)
    report = damaged(tmp_path, count=count)
    assert len(report.damages) == KEPT_MAX
    assert len({damage.fqn for damage in report.damages}) == KEPT_MAX


@both_kinds
def test_a_shard_file_that_is_gone(storage: Storage, tmp_path: Path) -> None:
    file = saved(tmp_path, storage)
    file.unlink()
    damaged(tmp_path, "No such file", file)


@both_kinds
def test_a_link_in_the_place_of_a_shard_file(storage: Storage, tmp_path: Path) -> None:
    file = saved(tmp_path / "step", storage)
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    damaged(tmp_path / "step", "symbolic links", file)


@pytest.mark.parametrize("cut", [-1, 1])
def test_a_shard_file_of_another_length(cut: int, tmp_path: Path) -> None:
    file = saved(tmp_path)
    os.truncate(file, file.stat().st_size - cut)
    damaged(tmp_path, "were committed", file)


def test_a_shard_file_of_another_save(tmp_path: Path) -> None:
    one, two = saved(tmp_path / "one"), saved(tmp_path / "two")
    two.rename(one)
    damaged(tmp_path / "one", "footer has CRC-32", one)


def test_an_item_that_only_the_footer_has(tmp_path: Path) -> None:
    file = saved(tmp_path)

    def change(metadata: Metadata) -> None:
        metadata.storage_data.pop(W)
        metadata.state_dict_metadata.pop("w")

    rewrite_metadata(tmp_path, change)
    damaged(tmp_path, "the metadata have none", file)


def test_an_archive_with_another_crc(tmp_path: Path) -> None:
    """The zip fields of a tensor do not belong to its payload; all our own checksums are right."""
    file = saved(tmp_path)
    item = item_named(tmp_path, "w")
    (entry,) = (entry for entry in footer_of(file).items if entry.extent.offset == item.offset)
    data = item.read()
    tail = data[entry.payload.end - item.offset :]
    old = struct.pack("<I", crc32_of_bytes(data[entry.payload.offset - item.offset :][:4800]))
    assert tail.count(old) == 2
    changed = tail.replace(old, b"abcd")
    overwrite(file, entry.payload.end, changed)

    def change(footer: Footer) -> Footer:
        items = tuple(
            dataclasses.replace(other, tail_crc32=crc32_of_bytes(changed))
            if other == entry
            else other
            for other in footer.items
        )
        return dataclasses.replace(footer, items=items)

    rewrite_footer(file, change)
    damaged(tmp_path, "w: ", "the archive says", "64636261")


def test_a_shard_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)

    def refuse(path: Path, *, direct: bool) -> None:
        raise TransferError(13, "Permission denied", path)

    monkeypatch.setattr(
        "dcp_gds.checkpoint.shardcheck.SideReader", lambda path: refuse(path, direct=False)
    )
    unreadable(tmp_path, "Permission denied")


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine"):
        verify_checkpoint(tmp_path, engine="warp")
