"""Bytes are called gds only when kvikio's counts and the engine's own completions agree.

Method: the arithmetic for every kind of count; on the simulated driver, an engine alone, one beside
another user of kvikio, and one whose process has switched kvikio's compat mode on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine, run_in_child
from tests.gdssim.simulator import Simulator

LENGTH = 1 << 20


def arithmetic(_: Simulator) -> None:
    from dcp_gds.io.gds import GdsCounts
    from dcp_gds.io.gdsproof import bytes_by_path

    for cufile, posix, moved, expected in (
        (0, 0, 0, {}),
        (8, 0, 8, {"gds": 8}),
        (0, 8, 8, {"gds-compat": 8}),
        (3, 5, 8, {"gds": 3, "gds-compat": 5}),
        (9, 0, 8, {"unattributed": 8}),
        (8, 1, 8, {"unattributed": 8}),
        (7, 0, 8, {"unattributed": 8}),
    ):
        counts = GdsCounts(cufile=cufile, posix=posix)
        assert bytes_by_path(counts, moved=moved) == expected


def test_the_arithmetic(gdssim: Libraries) -> None:
    run_in_child(Machine(libraries=gdssim), arithmetic)


def one_save(simulator: Simulator, path: str, other: str, mode: str) -> dict[str, int]:
    """What the engine says of a write of its own; `other`: somebody writes as much meanwhile."""
    import kvikio
    import kvikio.defaults

    from tests.io.simengine import new_file, sim_engine

    kvikio.defaults.set("compat_mode", kvikio.CompatMode[mode])
    with sim_engine(simulator) as it, new_file(path, length=LENGTH) as file:
        buffer, data = it.random(LENGTH)
        if other:
            Path(other).write_bytes(bytes(LENGTH))
            neighbour = kvikio.CuFile(other, "r+")
        assert it.write(file, buffer, length=LENGTH).error is None
        if other:
            assert neighbour.raw_write(buffer, LENGTH, 0, 0) == LENGTH
        found = it.engine.bytes_by_path()
        it.engine.close()
        it.window.close()
        # What others have open and have set is as it was, after our close too.
        assert kvikio.defaults.get("compat_mode") == kvikio.CompatMode[mode]
        if other:
            assert neighbour.raw_write(buffer, LENGTH, 0, 0) == LENGTH
            neighbour.close()
            assert Path(other).read_bytes() == data
        assert Path(path).read_bytes() == data
    return found


@pytest.mark.parametrize(
    ("mode", "beside", "path"),
    [
        ("OFF", False, "gds"),
        ("OFF", True, "unattributed"),
        ("ON", False, "gds-compat"),
    ],
)
def test_an_engines_bytes(
    gdssim: Libraries, tmp_path: Path, mode: str, beside: bool, path: str
) -> None:
    other = str(tmp_path / "other") if beside else ""
    found = run_in_child(Machine(libraries=gdssim), one_save, str(tmp_path / "f"), other, mode)
    assert found == {path: LENGTH}
