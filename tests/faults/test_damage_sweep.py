"""Damage anywhere in a checkpoint is found by a verification, and no load takes it for data.

Method: three ranks save small, large, packed and byte items. Then bits are flipped and files cut at
random, exchanged, deleted, and replaced by those of an older save, one damage at a time; each is
looked at by `verify_checkpoint` and by loads of all, of some items, and of some rows. `make test`
does some of it, `make test-long` 1,000 flips and 200 cuts.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict
from dcp_gds.format.archive import read_stored_tensor
from tests.checkpoint.shardfiles import flip_bit, items_of
from tests.checkpoint.storage import OURS, STOCK
from tests.faults.damaged import WORLD_SIZE, Damaged, save_part
from tests.faults.partialloads import LOADS, Loads
from tests.faults.tally import Tally
from tests.ranks import Ranks

SEED = 4
OLD_SEED = 3
FLIPS = pytest.mark.parametrize(
    "flips", [60, pytest.param(1000, marks=pytest.mark.slow)], ids=lambda count: f"{count}-flips"
)
CUTS = pytest.mark.parametrize(
    "cuts", [20, pytest.param(200, marks=pytest.mark.slow)], ids=lambda count: f"{count}-cuts"
)
REFUSED = {"CorruptCheckpointError", "TransferError", "NotCommittedError"}


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories `new` and `old` of ours, and `stock`."""
    path = tmp_path_factory.mktemp("saves")
    with Ranks(WORLD_SIZE) as ranks:
        ranks.run(save_part, path / "new", OURS, SEED)
        ranks.run(save_part, path / "old", OURS, OLD_SEED)
        ranks.run(save_part, path / "stock", STOCK, SEED)
    return path


@pytest.fixture
def ours(saves: Path) -> Damaged:
    checkpoint = Damaged(saves / "new")
    assert len(checkpoint.shard_files) == WORLD_SIZE
    # Else all damage would count as found.
    assert verify_checkpoint(checkpoint.path).verdict is Verdict.GOOD
    return checkpoint


def look(
    checkpoint: Damaged,
    kind: str,
    what: str,
    *,
    tally: Tally,
    draw: random.Random,
    loads: Sequence[str] = LOADS,
) -> None:
    """Expect damage that was done to ours to be found, and loads to be refused or right."""
    report = verify_checkpoint(checkpoint.path)
    found = report.verdict in (Verdict.DAMAGED, Verdict.UNREADABLE)
    tally.add(f"{kind}, verify", "found" if found else "not found")
    assert found, f"{what}: verify says {report.verdict}"
    for load in loads:
        outcome = Loads(checkpoint.path, SEED, draw).outcome(load)
        tally.add(f"{kind}, load", outcome)
        assert outcome in REFUSED | {"right"}, f"{what}: {load}: {outcome}"


def test_whole_checkpoints_are_good_and_load(saves: Path) -> None:
    right = {"whole load": "right", "load of some items": "right", "load of some rows": "right"}
    for name, seed in (("new", SEED), ("old", OLD_SEED)):
        assert verify_checkpoint(saves / name).verdict is Verdict.GOOD
        assert Loads(saves / name, seed, random.Random(0)).outcomes() == right
    assert verify_checkpoint(saves / "stock").verdict is Verdict.UNCHECKED
    assert Loads(saves / "stock", SEED, random.Random(0)).outcomes() == right


@FLIPS
def test_a_flipped_bit(flips: int, ours: Damaged, tally: Tally) -> None:
    draw = random.Random(flips)
    for number in range(flips):
        file, offset = ours.place(draw)
        bit = draw.randrange(8)
        what = f"seed {flips}, number {number}: bit {bit} of byte {offset} of {file.name}"
        flip_bit(file, offset=offset, bit=bit)
        kind = "flipped bit, .metadata" if file.suffix == "" else "flipped bit, shard file"
        look(ours, kind, what, tally=tally, draw=draw, loads=[draw.choice(LOADS)])
        flip_bit(file, offset=offset, bit=bit)


def seams(checkpoint: Damaged) -> Iterator[tuple[Path, int]]:
    """Bytes that belong to no item: zeros between items, and all behind the last one."""
    for file in checkpoint.shard_files:
        position = 0
        for item in (item for item in items_of(checkpoint.path) if item.file == file):
            yield from ((file, offset) for offset in range(position, item.offset))
            position = item.offset + item.length
        yield from ((file, offset) for offset in range(position, len(checkpoint.content(file))))


@FLIPS
def test_a_flipped_bit_outside_the_items(flips: int, ours: Damaged, tally: Tally) -> None:
    draw = random.Random(flips + 1)
    places = list(seams(ours))
    for file, offset in draw.sample(places, flips // 3):
        bit = draw.randrange(8)
        flip_bit(file, offset=offset, bit=bit)
        what = f"seed {flips + 1}: bit {bit} of byte {offset} of {file.name}"
        kind = "flipped bit outside items"
        look(ours, kind, what, tally=tally, draw=draw, loads=[draw.choice(LOADS)])
        flip_bit(file, offset=offset, bit=bit)


@CUTS
def test_a_file_cut_short(cuts: int, ours: Damaged, tally: Tally) -> None:
    draw = random.Random(cuts)
    for number in range(cuts):
        file, length = ours.place(draw)
        what = f"seed {cuts}, number {number}: {file.name} cut to {length} bytes"
        with ours.replaced({file: ours.content(file)[:length]}):
            loads = [draw.choice(LOADS)]
            look(ours, "file cut short", what, tally=tally, draw=draw, loads=loads)


def test_two_shard_files_exchanged(ours: Damaged, tally: Tally) -> None:
    for one, two in itertools.combinations(ours.shard_files, 2):
        with ours.replaced({one: ours.content(two), two: ours.content(one)}):
            look(ours, "two shard files exchanged", one.name, draw=random.Random(1), tally=tally)


def test_a_file_deleted(ours: Damaged, tally: Tally) -> None:
    for file in ours.files:
        with ours.replaced({file: None}):
            look(ours, "file deleted", file.name, draw=random.Random(2), tally=tally)


def test_a_file_of_an_older_save(ours: Damaged, saves: Path, tally: Tally) -> None:
    """Of the same items, and whole in itself."""
    old = Damaged(saves / "old")
    for file, other in zip(ours.files, old.files, strict=True):
        with ours.replaced({file: old.content(other)}):
            look(ours, "file of an older save", file.name, draw=random.Random(3), tally=tally)


def payload_places(checkpoint: Damaged) -> list[tuple[Path, int, int]]:
    """Where payloads of a stock checkpoint's tensors lie: file, offset, length."""
    places = []
    for item in (item for item in items_of(checkpoint.path) if item.is_tensor):
        stored = read_stored_tensor(io.BytesIO(item.read()), archive_length=item.length)
        places.append((item.file, item.offset + stored.storage.offset, stored.storage.length))
    return places


@FLIPS
def test_a_flipped_bit_in_a_stock_payload(flips: int, saves: Path, tally: Tally) -> None:
    stock = Damaged(saves / "stock")
    draw = random.Random(flips + 2)
    places = payload_places(stock)
    lengths = [length for _, _, length in places]
    for number in range(flips):
        ((file, start, length),) = draw.choices(places, lengths if number % 2 else None)
        offset = start + draw.randrange(length)
        flip_bit(file, offset=offset, bit=number % 8)
        what = f"seed {flips + 2}, number {number}: byte {offset} of {file.name}"
        report = verify_checkpoint(stock.path)
        tally.add("stock: flipped bit, payload, verify", str(report.verdict))
        assert report.verdict is Verdict.DAMAGED, what
        load = draw.choice(LOADS)
        outcome = Loads(stock.path, SEED, draw).outcome(load)
        tally.add(f"stock: flipped bit, payload, {load}", outcome)
        # Where only a part of a tensor is read, its one CRC-32 cannot be compared.
        assert outcome == "CorruptCheckpointError" or load != "whole load", what
        assert outcome != "wrong data" or load == "load of some rows", what
        flip_bit(file, offset=offset, bit=number % 8)


@FLIPS
def test_a_flipped_bit_anywhere_in_a_stock_checkpoint(
    flips: int, saves: Path, tally: Tally
) -> None:
    """Not all of it can be found, and none of it is called good."""
    stock = Damaged(saves / "stock")
    draw = random.Random(flips + 3)
    for number in range(flips):
        file, offset = stock.place(draw)
        bit = draw.randrange(8)
        flip_bit(file, offset=offset, bit=bit)
        report = verify_checkpoint(stock.path)
        tally.add("stock: flipped bit anywhere, verify", str(report.verdict))
        what = f"seed {flips + 3}, number {number}: bit {bit} of byte {offset} of {file.name}"
        assert report.verdict is not Verdict.GOOD, what
        flip_bit(file, offset=offset, bit=bit)
