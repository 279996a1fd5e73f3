"""Each item is a zip archive whose CRC-32s are right, and a flipped bit anywhere is found on load.

Method: Python's zipfile on the slice of every item, whole and after one bit of it was flipped;
loads after flips in every part of a shard file, in `.metadata`, and after exchanging shard files.
"""

from __future__ import annotations

import io
import random
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from dcp_gds import GDSReader
from dcp_gds.errors import CorruptCheckpointError
from tests.checkpoint.rawbytes import dense_tensor, filled_tensor, raw
from tests.checkpoint.refusal import refused, unwrapped
from tests.checkpoint.samples import LAYOUTS, saveable_dtypes
from tests.checkpoint.shardfiles import Item, flip_bit, footer_of, items_of
from tests.checkpoint.storage import OURS, STOCK, Storage, dcp_load, load, save

MIB = 1 << 20
# Payloads below, at and above a block, and one of several checksum blocks.
SHAPES = {"tiny": (3,), "block": (1024,), "odd": (9, 1111), "large": (17 * MIB // 4,)}


def state_of_all_kinds() -> dict[str, Any]:
    """A tensor of every layout and dtype, and values that are none."""
    dtypes = {str(dtype): dense_tensor((5, 7), dtype) for dtype in saveable_dtypes()}
    layouts = {f"layout.{name}": maker() for name, maker in LAYOUTS.items()}
    return {**dtypes, **layouts, "large": dense_tensor(SHAPES["large"], torch.float32), "n": 3}


def first_damaged(data: bytes | bytearray) -> str | None:
    """Name of the first damaged file of the archive, None if all are whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.testzip()


def payload_position(data: bytes | bytearray) -> int:
    """Where in an archive the tensor's own bytes begin; it must have some."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (entry,) = (info for info in archive.infolist() if info.filename.endswith("/data/0"))
    name, extra = data[entry.header_offset + 26 :][:2], data[entry.header_offset + 28 :][:2]
    lengths = int.from_bytes(name, "little") + int.from_bytes(extra, "little")
    return entry.header_offset + 30 + lengths


def saved(path: Path, storage: Storage = OURS) -> dict[str, torch.Tensor]:
    """Save one tensor of each shape; the state to load into."""
    state = {name: dense_tensor(shape, torch.float32) for name, shape in SHAPES.items()}
    save(dict(state), path, storage)
    return {name: filled_tensor(shape, torch.float32) for name, shape in SHAPES.items()}


def item_named(path: Path, fqn: str) -> Item:
    (item,) = (item for item in items_of(path) if item.index.fqn == fqn)
    return item


def test_every_archive_is_whole(tmp_path: Path) -> None:
    save(state_of_all_kinds(), tmp_path)
    items = items_of(tmp_path)
    assert len(items) == len(state_of_all_kinds())
    assert [item.index.fqn for item in items if first_damaged(item.read()) is not None] == []


def test_a_flip_in_the_payload_is_found_by_zipfile(tmp_path: Path) -> None:
    save(state_of_all_kinds(), tmp_path)
    found = 0
    for item in items_of(tmp_path):
        data = bytearray(item.read())
        start = payload_position(data) if item.is_tensor else 0
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {info.filename.split("/", 1)[1]: info.file_size for info in archive.infolist()}
        if not item.is_tensor or not sizes["data/0"]:
            continue
        for position in (start, start + sizes["data/0"] - 1):
            data[position] ^= 0x10
            assert first_damaged(data) is not None, item.index.fqn
            data[position] ^= 0x10
        found += 1
    assert found > len(LAYOUTS)


def test_the_crc_is_that_of_the_bytes(tmp_path: Path) -> None:
    source = dense_tensor(SHAPES["large"], torch.float32)
    save({"large": source}, tmp_path)
    with zipfile.ZipFile(io.BytesIO(item_named(tmp_path, "large").read())) as archive:
        (entry,) = (info for info in archive.infolist() if info.filename.endswith("/data/0"))
    assert zlib.crc32(raw(source)) == entry.CRC
    assert entry.file_size == len(raw(source))


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("fqn", SHAPES)
@pytest.mark.parametrize("saver", [OURS, STOCK], ids=lambda storage: storage.name)
def test_a_flip_in_the_payload(saver: Storage, fqn: str, place: str, tmp_path: Path) -> None:
    targets = saved(tmp_path, saver)
    item = item_named(tmp_path, fqn)
    length = targets[fqn].nbytes
    within = {"first": 0, "middle": length // 2, "last": length - 1}[place]
    flip_bit(item.file, offset=item.offset + payload_position(item.read()) + within)
    with refused(CorruptCheckpointError, fqn, item.file):
        load(dict(targets), tmp_path)


@pytest.mark.parametrize("part", ["head", "tail"])
@pytest.mark.parametrize("fqn", SHAPES)
def test_a_flip_in_the_envelope(fqn: str, part: str, tmp_path: Path) -> None:
    """The footer's CRC shows it, whatever zip tools say of it; a load is right, or refused.

    A reader that knows from the footer what the head is need not read it: so most loads are right.
    """
    targets = saved(tmp_path)
    item = item_named(tmp_path, fqn)
    start = payload_position(item.read())
    end = start + targets[fqn].nbytes
    (entry,) = (entry for entry in footer_of(item.file).items if entry.extent.offset == item.offset)
    spread = range(start) if part == "head" else range(end, item.length)
    for within in random.Random(5).sample(spread, 12):
        flip_bit(item.file, offset=item.offset + within, bit=within % 8)
        data = item.read()
        crc32s = (zlib.crc32(data[:start]), zlib.crc32(data[end:]))
        assert (crc32s[0] != entry.head_crc32, crc32s[1] != entry.tail_crc32) == (
            part == "head",
            part == "tail",
        )
        try:
            load(dict(targets), tmp_path)
            right = raw(targets[fqn]) == raw(dense_tensor(SHAPES[fqn], torch.float32))
        except CheckpointException as error:
            right = isinstance(unwrapped(error), CorruptCheckpointError)
        assert right
        flip_bit(item.file, offset=item.offset + within, bit=within % 8)


def test_a_flip_in_a_byte_item(tmp_path: Path) -> None:
    save({"epoch": list(range(1000))}, tmp_path)
    (item,) = items_of(tmp_path)
    for within in (0, item.length // 2, item.length - 1):
        flip_bit(item.file, offset=item.offset + within)
        with refused(CorruptCheckpointError, "epoch", item.file):
            load({"epoch": []}, tmp_path)
        flip_bit(item.file, offset=item.offset + within)


def test_a_flip_in_the_footer(tmp_path: Path) -> None:
    targets = saved(tmp_path)
    (file,) = tmp_path.glob("*.distcp")
    start = max(item.offset + item.length for item in items_of(tmp_path))
    end = file.stat().st_size
    # From behind: the last bytes are all the footer's, before it there may be padding.
    for offset in random.Random(6).sample(range(end - (end - start) // 2, end), 20):
        flip_bit(file, offset=offset)
        with refused(CorruptCheckpointError, file):
            load(dict(targets), tmp_path)
        flip_bit(file, offset=offset)


def test_a_flip_in_the_metadata(tmp_path: Path) -> None:
    targets = saved(tmp_path)
    file = tmp_path / ".metadata"
    for offset in random.Random(7).sample(range(file.stat().st_size), 40):
        flip_bit(file, offset=offset, bit=offset % 8)
        with refused(CorruptCheckpointError, file):
            load(dict(targets), tmp_path)
        flip_bit(file, offset=offset, bit=offset % 8)
    load(dict(targets), tmp_path)


def test_an_exchanged_shard_file(tmp_path: Path) -> None:
    """Two saves of the same shapes, whose every checksum is right, with their files exchanged."""
    state = {name: dense_tensor(shape, torch.float32) for name, shape in SHAPES.items()}
    save(dict(state), tmp_path / "one")
    save(dict(state), tmp_path / "two")
    (one,), (two,) = (tuple((tmp_path / name).glob("*.distcp")) for name in ("one", "two"))
    assert one.stat().st_size == two.stat().st_size
    shutil.copy(two, one)
    with refused(CorruptCheckpointError, one):
        load(dict(state), tmp_path / "one")


def test_what_is_not_verified_is_not_called_verified(tmp_path: Path) -> None:
    targets = saved(tmp_path)
    item = item_named(tmp_path, "large")
    flip_bit(item.file, offset=item.offset + payload_position(item.read()) + 5)
    with GDSReader(tmp_path, verify=False) as reader:
        dcp_load(dict(targets), storage_reader=reader, no_dist=True)
        assert reader.report is not None
        assert reader.report.verified_bytes == 0
        assert reader.report.unverified_bytes == sum(t.nbytes for t in targets.values())
    assert raw(targets["large"]) != raw(dense_tensor(SHAPES["large"], torch.float32))
    assert raw(targets["odd"]) == raw(dense_tensor(SHAPES["odd"], torch.float32))


@pytest.mark.parametrize("saver", [OURS, STOCK], ids=lambda storage: storage.name)
def test_without_checksums(saver: Storage, tmp_path: Path) -> None:
    """CRCs that are all zero mean "not computed", not "wrong"."""
    state = {name: dense_tensor(shape, torch.float32) for name, shape in SHAPES.items()}
    if saver is OURS:
        save(dict(state), tmp_path, checksum=False)
        assert not footer_of(items_of(tmp_path)[0].file).checksums
    else:
        compute = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        save(dict(state), tmp_path, STOCK)
        torch.serialization.set_crc32_options(compute)
    targets = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    with GDSReader(tmp_path, verify=True) as reader:
        dcp_load(dict(targets), storage_reader=reader, no_dist=True)
        assert reader.report is not None
        assert reader.report.verified_bytes == 0
    assert {name: raw(t) for name, t in targets.items()} == {n: raw(t) for n, t in state.items()}
