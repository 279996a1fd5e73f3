"""Any kernel's files are parsed into what they say, and garbage into nothing.

Method: files recorded on kernels 4.18 to 6.19, the same files cut and mixed by hypothesis, and
random bytes.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.hostmem.vmstat import (
    moved,
    only,
    only_kib,
    parse_counters,
    parse_diskstats,
    parse_kib,
    parse_pressure,
)
from tests.hostmem.recorded import KERNELS, recording

TOP = 1 << 64
ALWAYS_THERE = ("nr_dirty", "nr_writeback", "pgscan_kswapd", "pgsteal_kswapd", "pswpin", "pswpout")
EVERYTHING = [
    recording(kernel, name)
    for kernel in KERNELS
    for name in ("vmstat", "meminfo", "diskstats", "memory.stat", "pressure_io")
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_vmstat_of_each_kernel(kernel: str) -> None:
    text = recording(kernel, "vmstat")
    counters = parse_counters(text)
    assert len(counters) == len(text.splitlines())
    assert set(ALWAYS_THERE) <= set(counters)
    assert sum(name.startswith("allocstall_") for name in counters) >= 3


def test_what_the_recordings_say() -> None:
    old, new = (parse_counters(recording(kernel, "vmstat")) for kernel in ("4.18", "6.18"))
    assert (old["nr_dirty"], old["nr_written"]) == (4340, 260861)
    assert "nr_foll_pin_acquired" in new
    assert "nr_foll_pin_acquired" not in old
    assert ("workingset_refault" in old, "workingset_refault" in new) == (True, False)
    memory = parse_kib(recording("4.18", "meminfo"))
    assert memory["MemTotal"] == 8164548 << 10
    assert memory["Active(anon)"] == 306668 << 10
    # Numbers of pages, not of bytes.
    assert "HugePages_Total" not in memory
    assert parse_counters(recording("6.19", "memory.stat"))["file_dirty"] == 372736


@pytest.mark.parametrize("kernel", ["4.18", "6.18"])
def test_drives_of_kernels_with_fewer_and_more_fields(kernel: str) -> None:
    text = recording(kernel, "diskstats")
    drives = parse_diskstats(text)
    assert len(drives) == len(text.splitlines())
    if kernel == "4.18":
        assert drives["sda"] == (856916 * 512, 2253152 * 512)


def test_pressure() -> None:
    text = b"some avg10=3.69 avg60=3.78 total=76535080\nfull avg10=1.54 total=64058889\n"
    assert parse_pressure(text) == {"some": 76535080, "full": 64058889}
    assert set(parse_pressure(recording("6.18", "pressure_io"))) == {"some", "full"}


def test_a_pattern_takes_only_what_it_names() -> None:
    text = recording("6.18", "vmstat")
    found = parse_counters(text, only(["nr_dirty"], prefixes=["allocstall"]))
    everything = parse_counters(text)
    expected = {n for n in everything if n == "nr_dirty" or n.startswith("allocstall_")}
    assert found == {name: everything[name] for name in expected}
    assert "nr_dirty_threshold" not in found
    assert set(parse_kib(recording("6.18", "meminfo"), only_kib(["MemTotal"]))) == {"MemTotal"}


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\n", b"nr_dirty", b"nr_dirty -1", b"nr_dirty 1e9", b"nr_dirty 1 2"),
        *(b"nr_dirty " + b"9" * 21, b"nr_dirty 0x10", b"\xff\xfe 1 1"),
        "nr_dirty \u0661".encode(),
    ],
)
def test_what_is_no_counter_is_left_out(text: bytes) -> None:
    assert parse_counters(text) == {}


@given(
    st.one_of(
        st.binary(),
        st.sampled_from(EVERYTHING).flatmap(
            lambda text: st.tuples(st.integers(0, len(text)), st.binary(max_size=8)).map(
                lambda cut: text[: cut[0]] + cut[1] + text[cut[0] // 2 :]
            )
        ),
    )
)
def test_garbage_raises_nothing_and_gives_counts(text: bytes) -> None:
    values = [*parse_counters(text).values(), *parse_pressure(text).values()]
    values += [kib >> 10 for kib in parse_kib(text).values()]
    values += [number for drive in parse_diskstats(text).values() for number in drive]
    assert all(0 <= value < 10**23 for value in values)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,20}", fullmatch=True), st.integers(0, TOP - 1)))
def test_what_is_printed_is_read_back(values: dict[str, int]) -> None:
    text = "".join(f"{name} {value}\n" for name, value in values.items()).encode()
    assert parse_counters(text) == values


@given(before=st.integers(0, TOP - 1), step=st.integers(0, 1 << 40))
def test_a_counter_that_goes_on_or_wraps(before: int, step: int) -> None:
    assert moved(before=before, after=(before + step) % TOP) == step


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1000, 0, 0),
        (1000, 10, 10),
        (1 << 40, 499, 499),
        # A sum over CPUs that went back while it was added up.
        (1000, 998, 0),
    ],
)
def test_a_counter_that_was_reset(before: int, after: int, expected: int) -> None:
    assert moved(before=before, after=after) == expected
