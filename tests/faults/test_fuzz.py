"""Whatever bytes a checkpoint's files have, reading them ends in a value or in an error of ours.

Method: valid footers, trailers, metadata, zip directories and archives are changed at random, with
checksums as they were and with checksums made right for the changed bytes, and read. Nothing else
than `DcpGdsError` may come of it, in bounded time and with memory of the file's size.
"""

from __future__ import annotations

import io
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from dcp_gds.checkpoint.archiveentries import check_description
from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.errors import DcpGdsError
from dcp_gds.format.archive import read_stored_tensor
from dcp_gds.format.endrecord import END_RECORD_LENGTH, RecordKind, seal
from dcp_gds.format.extent import Extent
from dcp_gds.format.footer import FOOTER_TAIL_LENGTH, decode_footer, parse_footer_tail
from dcp_gds.format.metadata import load_metadata, split_metadata
from dcp_gds.format.trailer import Trailer, encode_trailer
from dcp_gds.format.ziplayout import read_entries
from tests.faults.mutations import mutated
from tests.faults.tally import Tally
from tests.format.footers import encode_footer
from tests.format.test_footer import ITEMS_END
from tests.format.test_footer import KIND as FOOTER_KIND
from tests.format.test_footer import SAMPLE as FOOTER
from tests.format.test_metadata import SAMPLE as METADATA

pytestmark = pytest.mark.timeout(300)

PATH = "/ckpt/file"
TRAILER_KIND = RecordKind("trailer", b"DCPGDStr", 1)
MIB = 1 << 20
# What reading costs whatever the file's size: messages, tracebacks, torch's own caches.
ALLOWANCE_BYTES = MIB
# Memory that others than Python allocate shows in the address space only, beside Python's own.
ADDRESS_SPACE_BYTES = 1024 * MIB
COUNTS = pytest.mark.parametrize("examples", [200, pytest.param(2_000, marks=pytest.mark.slow)])


def saved(value: object) -> bytes:
    archive = io.BytesIO()
    torch.save(value, archive)
    return archive.getvalue()


ARCHIVE = saved(torch.arange(60.0).reshape(6, 10).t())
ENCODED_FOOTER = encode_footer(FOOTER)
PICKLED = bytes(split_metadata(METADATA, path=PATH)[0])


def read_footer(footer: bytes, _: Path) -> object:
    data = bytes(ITEMS_END) + footer
    last = data[-FOOTER_TAIL_LENGTH:]
    extent = parse_footer_tail(last, file_length=len(data), path=PATH)
    if extent is None:
        return None
    return decode_footer(data[extent.offset :], file_length=len(data), path=PATH)


def read_sealed_footer(body: bytes, _: Path) -> object:
    return read_footer(seal(body, kind=FOOTER_KIND), _)


def read_metadata(data: bytes, _: Path) -> object:
    pickled, trailer = split_metadata(data, path=PATH)
    return load_metadata(pickled, path=PATH), trailer


def read_sealed_trailer(body: bytes, _: Path) -> object:
    return read_metadata(PICKLED + seal(body, kind=TRAILER_KIND), _)


def read_sealed_metadata(pickled: bytes, _: Path) -> object:
    trailer = Trailer("ab" * 16, len(pickled), zlib.crc32(pickled), ())
    return read_metadata(pickled + encode_trailer(trailer), _)


def read_zip(data: bytes, _: Path) -> object:
    return read_entries(
        lambda part: data[part.offset : part.end] if part.offset >= 0 else b"",
        archive_length=len(data),
    )


def read_archive(data: bytes, file: Path) -> object:
    """As the locator does, but for the checksums, which a hostile file has right."""
    file.write_bytes(data)
    whole = Extent(0, len(data))
    with SideReader(file) as side:
        check_description(side, whole, compare=False)
        return read_stored_tensor(side.view(whole), archive_length=len(data))


TARGETS: dict[str, tuple[bytes, Callable[[bytes, Path], object]]] = {
    "footer": (ENCODED_FOOTER, read_footer),
    "footer with right CRC-32": (ENCODED_FOOTER[:-END_RECORD_LENGTH], read_sealed_footer),
    "metadata and trailer": (METADATA, read_metadata),
    "trailer with right CRC-32": (METADATA[len(PICKLED) : -END_RECORD_LENGTH], read_sealed_trailer),
    "metadata with right CRC-32": (PICKLED, read_sealed_metadata),
    "zip directory": (ARCHIVE, read_zip),
    "archive": (ARCHIVE, read_archive),
}


@contextmanager
def bounded_memory(length: int) -> Iterator[None]:
    """Expect no more memory of Python's to be taken than reading a file of this length may take."""
    # Tracing what hypothesis does as well would take ten times as long.
    tracemalloc.start()
    try:
        yield
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken <= 2 * length + ALLOWANCE_BYTES, f"{taken} bytes for {length}"


def address_space_peak() -> int:
    """The most address space that this process has had, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPeak:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not say")


@COUNTS
@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_read_or_refused(
    name: str, examples: int, tmp_path: Path, tally: Tally
) -> None:
    valid, read = TARGETS[name]
    read(valid, tmp_path / "file")

    @settings(
        max_examples=examples,
        # What stays out explains a failure by running it again and again, which takes minutes.
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(valid))
    def fuzz(data: bytes) -> None:
        with bounded_memory(len(data)):
            try:
                read(data, tmp_path / "file")
            except DcpGdsError:
                outcome = "refused"
            else:
                outcome = "read"
        tally.add(f"fuzzed {name}", outcome)

    peak = address_space_peak()
    fuzz()
    assert address_space_peak() - peak < ADDRESS_SPACE_BYTES
