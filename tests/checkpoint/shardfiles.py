"""Shard files: the items and the footers of a checkpoint on disk, and damage done to them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from dcp_gds.format.footer import (
    FOOTER_TAIL_LENGTH,
    Footer,
    decode_footer,
    footer_crc32,
    parse_footer_tail,
)
from dcp_gds.format.metadata import ShardFileRecord, dump_metadata, split_metadata
from tests.format.footers import encode_footer

__all__ = [
    "Item",
    "flip_bit",
    "footer_of",
    "items_end",
    "items_of",
    "metadata_of",
    "rewrite_footer",
    "rewrite_metadata",
]


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a checkpoint: what it is and where it is."""

    index: MetadataIndex
    file: Path
    offset: int
    length: int

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor's archive; bytes have no offset in a tensor."""
        return self.index.offset is not None

    def read(self) -> bytes:
        """The item's bytes."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


def metadata_of(path: Path) -> Metadata:
    """Unpickle `.metadata` as DCP does; what follows the pickle is ignored."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    assert isinstance(metadata, Metadata)
    return metadata


def items_of(path: Path) -> list[Item]:
    """All items of the checkpoint in `path`, in file order."""
    found = [
        Item(index, path / info.relative_path, info.offset, info.length)
        for index, info in metadata_of(path).storage_data.items()
    ]
    return sorted(found, key=lambda item: (item.file, item.offset))


def items_end(file: Path, metadata: Metadata) -> int:
    """Offset behind the last item of one shard file."""
    infos = [info for info in metadata.storage_data.values() if info.relative_path == file.name]
    return int(max(info.offset + info.length for info in infos))


def footer_of(file: Path) -> Footer:
    """The footer of a shard file that GDSWriter wrote."""
    data = file.read_bytes()
    extent = parse_footer_tail(data[-FOOTER_TAIL_LENGTH:], file_length=len(data), path=file)
    assert extent is not None, f"{file} has no footer"
    return decode_footer(data[extent.offset : extent.end], file_length=len(data), path=file)


def rewrite_metadata(path: Path, change: Callable[[Metadata], None]) -> None:
    """Change the checkpoint's metadata as a valid file: pickle, and trailer if there was one."""
    file = path / ".metadata"
    _, trailer = split_metadata(file.read_bytes(), path=file)
    metadata = metadata_of(path)
    change(metadata)
    data = (
        pickle.dumps(metadata)
        if trailer is None
        else dump_metadata(metadata, token=trailer.token, shard_files=trailer.shard_files)
    )
    file.write_bytes(data)


def rewrite_footer(file: Path, change: Callable[[Footer], Footer]) -> None:
    """Change a shard file's footer as a valid one that the metadata's trailer knows."""
    data = file.read_bytes()
    extent = parse_footer_tail(data[-FOOTER_TAIL_LENGTH:], file_length=len(data), path=file)
    assert extent is not None
    encoded = encode_footer(change(footer_of(file)))
    file.write_bytes(data[: extent.offset] + encoded)
    metadata_file = file.with_name(".metadata")
    _, trailer = split_metadata(metadata_file.read_bytes(), path=metadata_file)
    assert trailer is not None
    record = ShardFileRecord(file.name, extent.offset + len(encoded), footer_crc32(encoded))
    records = [record if other.name == file.name else other for other in trailer.shard_files]
    metadata_file.write_bytes(
        dump_metadata(metadata_of(file.parent), token=trailer.token, shard_files=records)
    )


def flip_bit(file: Path, *, offset: int, bit: int = 0) -> None:
    """Flip one bit of the byte at `offset`; doing it again undoes it."""
    with file.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ (1 << bit)]))
