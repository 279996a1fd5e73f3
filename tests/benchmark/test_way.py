"""The way of the bytes is claimed only where it was seen.

Method: made-up sightings.
"""

from __future__ import annotations

import pytest

from dcp_gds.benchmark.way import Sighting, Way, way_of

MIB = 1 << 20
LENGTH = 100 * MIB


@pytest.mark.parametrize(
    ("direct", "engine_bytes", "cached", "expected"),
    [
        (True, {}, 0, Way("direct, nothing cached after", proven=True)),
        (True, {}, MIB, Way("direct, 1.0 MiB cached after", proven=True)),
        (True, {}, 2 * MIB, Way("direct NOT proven: 2.0 MiB cached after", proven=False)),
        (True, {"direct": LENGTH}, 0, Way("direct, nothing cached after", proven=True)),
        (
            True,
            {"buffered": 84 << 10, "direct": LENGTH},
            0,
            Way("direct (84.0 KiB by buffered), nothing cached after", proven=True),
        ),
        # Direct was meant, and most of it went elsewhere and was dropped from the cache behind.
        (
            True,
            {"buffered": LENGTH, "direct": MIB},
            0,
            Way(
                "buffered (1.0 MiB by direct) NOT proven: engines counted 1,048,576 bytes past the"
                " page cache",
                proven=False,
            ),
        ),
        (
            True,
            {"direct": LENGTH - 1},
            0,
            Way(
                "direct NOT proven: engines counted 104,857,599 bytes past the page cache",
                proven=False,
            ),
        ),
        (
            True,
            {"direct": MIB, "gds": LENGTH - MIB},
            0,
            Way("gds (1.0 MiB by direct), nothing cached after", proven=True),
        ),
        (False, {}, LENGTH, Way("page cache, 100.0 MiB cached after", proven=True)),
        (False, {"buffered": LENGTH}, 0, Way("buffered, nothing cached after", proven=True)),
        (
            False,
            {"buffered": MIB},
            0,
            Way("buffered NOT proven: engines counted 1,048,576 bytes", proven=False),
        ),
    ],
)
def test_the_way_of_one_run(
    *, direct: bool, engine_bytes: dict[str, int], cached: int, expected: Way
) -> None:
    assert way_of([Sighting(direct, engine_bytes, cached)], length=LENGTH) == expected


def test_one_run_of_several_is_enough_to_disprove() -> None:
    good = Sighting(True, {"direct": LENGTH}, 0)
    cached = Sighting(True, {"direct": LENGTH}, LENGTH)
    elsewhere = Sighting(True, {"buffered": LENGTH}, 0)
    silent = Sighting(True, {}, 0)
    assert way_of([good, good], length=LENGTH).proven
    for other in (cached, elsewhere, silent):
        assert not way_of([good, other], length=LENGTH).proven
        assert not way_of([other, good], length=LENGTH).proven


def test_what_went_aside_is_that_of_the_run_with_most() -> None:
    runs = [Sighting(True, {"direct": LENGTH, "buffered": n << 10}, 0) for n in (3, 7, 5)]
    assert way_of(runs, length=LENGTH).text == "direct (7.0 KiB by buffered), nothing cached after"
