"""An archive that asks for too much memory, or contradicts itself, is refused before torch sees it.

Method: the archive of a tensor in a stock checkpoint, and in one of ours with all checksums made
right, is replaced by one that asks for gigabytes, or has entries twice or over each other; the
loads' address space is watched.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import Footer, FooterItem
from tests.checkpoint.refusal import refused
from tests.checkpoint.shardfiles import items_of, rewrite_footer, rewrite_metadata
from tests.checkpoint.storage import OURS, STOCK, Storage, load, save

MIB = 1 << 20
# What is asked for is 8 GiB. Threads reserve 64 MiB each for their allocations.
ADDRESS_SPACE_BYTES = 1 << 30
START = b"\x80\x02"
BYTEARRAY = START + b"c__builtin__\nbytearray\n\x8a\x05\0\0\0\0\2\x85R."
LONG = START + b"X" + struct.pack("<I", MIB) + bytes(MIB) + b"."


def description() -> bytes:
    """What torch.save says of a tensor that is not contiguous, for which archives are read."""
    file = io.BytesIO()
    torch.save(torch.ones(3, 3).t(), file)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


DESCRIPTION = description()


def archive_with(pickled: bytes, *, method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", bytes(36))
    return file.getvalue()


def archive_with_twins() -> bytes:
    """An archive with two entries of one name, of which readers take either."""
    data = archive_with(DESCRIPTION)
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("archive/data/0", bytes(36))
    return file.getvalue()


def archive_that_overlaps() -> bytes:
    """An archive whose second entry is said to begin where the first one does."""
    data = archive_with(DESCRIPTION)
    position = data.rindex(b"PK\x01\x02") + 42
    return data[:position] + bytes(4) + data[position + 4 :]


HOSTILE = {
    "a long bytearray": (archive_with(BYTEARRAY), "any amount of memory"),
    "a compressed pickle": (archive_with(LONG, method=zipfile.ZIP_DEFLATED), "method 8"),
    "a long pickle": (archive_with(START + b"N0" * 40_000 + b"N."), "has 80004 bytes"),
    "an entry twice": (archive_with_twins(), "is there twice"),
    "entries that share bytes": (archive_that_overlaps(), "before the end of the last one"),
    "no archive": (BYTEARRAY + archive_with(pickle.dumps(1)), "does not begin as an archive"),
}


def address_space_peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not say")


def replace(path: Path, archive: bytes, storage: Storage) -> None:
    """Put an archive behind a checkpoint's one item, and make it the item."""
    (item,) = items_of(path)
    start = item.offset + item.length
    data = item.file.read_bytes()
    item.file.write_bytes(bytes(start) + archive + data[start:])

    def change_footer(footer: Footer) -> Footer:
        head = max(archive.find(bytes(36)), 1)
        entry = FooterItem(
            Extent(start, len(archive)),
            Extent(start + head, 36),
            zlib.crc32(archive[:head]),
            zlib.crc32(archive[head + 36 :]),
            (zlib.crc32(archive[head : head + 36]),),
        )
        return dataclasses.replace(footer, items=(entry,))

    if storage is OURS:
        rewrite_footer(item.file, change_footer)

    def change(metadata: Metadata) -> None:
        (info,) = metadata.storage_data.values()
        info.offset, info.length = start, len(archive)

    rewrite_metadata(path, change)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["stock", "stock, not verified", "ours"])
def test_it_is_refused_and_takes_no_memory(name: str, kind: str, tmp_path: Path) -> None:
    archive, message = HOSTILE[name]
    storage = OURS if kind == "ours" else STOCK
    save({"x": torch.ones(9)}, tmp_path, storage)
    replace(tmp_path, archive, storage)
    target = {"x": torch.zeros(9)}
    before = address_space_peak()
    with refused(CorruptCheckpointError, "x: ", message):
        load(target, tmp_path, verify=kind != "stock, not verified")
    assert target["x"].eq(0).all()
    assert verify_checkpoint(tmp_path).verdict is Verdict.DAMAGED
    assert address_space_peak() - before < ADDRESS_SPACE_BYTES
