"""Quantities are read in every usual spelling, and what is none is refused.

Method: tables of spellings, and hypothesis for the way back.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512GiB", 512 << 30),
        ("512gib", 512 << 30),
        ("512 GiB", 512 << 30),
        ("512G", 512 << 30),
        ("512Gi", 512 << 30),
        ("512GB", 512 * 10**9),
        ("512 gb", 512 * 10**9),
        ("1.5TiB", 3 << 39),
        ("6.5GB/s", 6_500_000_000),
        ("2TB/s", 2 * 10**12),
        ("6.5 GBps", 6_500_000_000),
        ("1 GiB per second", 1 << 30),
        ("0", 0),
        ("1e9", 10**9),
        ("1_000", 1000),
        ("1,000,000 bytes", 10**6),
        (".5k", 512),
        ("7B", 7),
        ("  7  ", 7),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text, name="x") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "GiB", "-1", "-1GiB", "1Gb", "1 Gbit", "1Gb/s", "1 XB", "1.2.3", "nan", "inf"),
        *("1e999", "9EiB", "1GiB2", "0x10", "1 GiB/min", "\u0663GiB", "1" * 400),
    ],
)
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ConfigError, match="host_ram is "):
        parse_bytes(text, name="host_ram")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("70e9", 70 * 10**9),
        ("70B", 70 * 10**9),
        ("1.5T", 15 * 10**11),
        ("8", 8),
        ("7 m", 7 * 10**6),
    ],
)
def test_counts(text: str, expected: int) -> None:
    assert parse_count(text, name="x") == expected


@pytest.mark.parametrize("text", ["", "-70e9", "70GB", "many", "1e300"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ConfigError, match="params is "):
        parse_count(text, name="params")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("100ms", 0.1),
        ("5 milliseconds", 0.005),
        ("20min", 1200.0),
        ("20 minutes", 1200.0),
        ("20m", 1200.0),
        ("1h30m", 5400.0),
        ("1 hour 30 minutes", 5400.0),
        ("3 days", 259200.0),
        ("1w", 604800.0),
        ("1.5h", 5400.0),
    ],
)
def test_seconds(text: str, expected: float) -> None:
    assert parse_seconds(text, name="x") == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "-1", "soon", "1h 30", "1 month", "1e300", "1y"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="--mtbf is "):
        parse_seconds(text, name="--mtbf")


@given(st.integers(0, (1 << 62)))
def test_what_is_shown_is_read_back(size: int) -> None:
    back = parse_bytes(format_bytes(size), name="x")
    assert back == pytest.approx(size, rel=0.06, abs=0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 20, "1.0 MiB"),
        (-(3 << 30), "-3.0 GiB"),
        (2**70, "1024.0 EiB"),
    ],
)
def test_bytes_shown(value: float, expected: str) -> None:
    assert format_bytes(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.02, "20 ms"),
        (1.5, "1.5 s"),
        (1200, "20 minutes"),
        (9000, "2.5 hours"),
        (864000, "10.0 days"),
    ],
)
def test_seconds_shown(value: float, expected: str) -> None:
    assert format_seconds(value) == expected
