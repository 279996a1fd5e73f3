"""`dcp-gds bench` writes tables, JSON and a picture, or one line that says why not.

Method: whole runs of a tiny scope on real filesystems, with real fio, stand-ins for it, or none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dcp_gds.benchmark.fio import INSTALL, find_fio
from tests.benchmark.standin import install, only_on_path
from tests.cli.benchruns import LENGTH, Bench, tiny
from tests.filesystems import Mounts, missing

pytestmark = pytest.mark.root
Output = pytest.CaptureFixture[str]
PNG = b"\x89PNG\r\n"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return tiny(tmp_path, monkeypatch)


@pytest.fixture
def drive(mounts: Mounts) -> Path:
    """A directory where direct I/O is honoured."""
    return mounts.directory("ext4")


def names(side: dict[str, Any]) -> list[str]:
    return [row["contender"] for row in side["contenders"]]


def test_a_run_with_fio(bench: Bench, drive: Path, capsys: Output) -> None:
    if find_fio(gpu=False) is None:
        missing("fio")
    assert bench(drive, "--rounds", "1") == 0
    assert list(drive.iterdir()) == []
    said = capsys.readouterr()
    assert said.out.splitlines()[-2:] == [f"{bench.output}.json", f"{bench.output}.png"]
    assert "Durable write; ceiling: " in said.out
    assert "8.0 MiB, 1 rounds in turn: median (least-greatest)" in said.out
    assert "round 1 of 1: GDSWriter, direct" in said.err
    assert Path(f"{bench.output}.png").read_bytes().startswith(PNG)
    document = bench.document
    fio, bare = (names(document["write"])[index] for index in (0, 1))
    assert names(document["write"]) == [
        *(fio, bare, "GDSWriter, direct", "GDSWriter, buffered", "stock FileSystemWriter"),
        *("GDSWriter, async_save", "stock FileSystemWriter, async_save"),
    ]
    assert fio.startswith(("fio (io_uring, 1 MiB, depth 2", "fio (libaio, 1 MiB, depth 2"))
    assert bare == "bare (threads, 1 MiB, depth 2)"
    assert document["write"]["ceiling"] in (fio, bare)
    assert document["environment"]["fio"].startswith("fio-")
    assert {point["tool"] for point in document["sweep"]} == {"fio", "bare"}
    assert all(point["error"] == "" for point in document["sweep"])


def test_a_run_without_fio(
    bench: Bench, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    only_on_path(monkeypatch, tmp_path)
    assert bench(drive, "--quick", "--rounds", "1") == 0
    assert list(drive.iterdir()) == []
    document = bench.document
    note = f"fio is not installed: the ceiling is our own bare writer's; {INSTALL}"
    assert note in document["notes"]
    assert f"note: {note}" in " ".join(capsys.readouterr().out.split())
    assert document["environment"]["fio"] == "not installed"
    assert document["write"]["ceiling"] == "bare (threads, 1 MiB, depth 2)"
    assert_schema(document, drive)


def assert_schema(document: dict[str, Any], drive: Path) -> None:
    """Keys, units and values of a quick run of one round without fio."""
    assert list(document) == [
        *("schema", "environment", "target", "scope", "sweep", "settings", "write", "read"),
        "notes",
    ]
    assert document["schema"] == 1
    assert set(document["environment"]) == {
        *("when", "kernel", "cpu", "memory", "load", "mount", "drive", "python"),
        *("dcp-gds", "torch", "numpy", "fio"),
    }
    assert document["environment"]["mount"].startswith("ext4 (/dev/loop")
    target = document["target"]
    assert (target["path"], target["filesystem"]) == (str(drive), "ext4")
    assert target["direct"] is True
    assert "direct I/O is honoured" in target["reason"]
    assert set(document["scope"]) == {"length", "memory_bytes", "rounds", "grid", "background"}
    assert (document["scope"]["length"], document["scope"]["rounds"]) == (LENGTH, 1)
    setting = {"engine": "threads", "block_bytes": 1 << 20, "depth": 2}
    assert document["settings"] == {"bare": {"write": setting, "read": setting}}
    (point,) = document["sweep"]
    assert point["tool"] == "bare"
    assert point["setting"] == setting
    assert point["write_gb_per_s"] > 0
    assert point["read_gb_per_s"] > 0
    assert names(document["read"]) == [
        *("bare (threads, 1 MiB, depth 2)", "GDSReader, direct", "GDSReader, buffered"),
        "stock FileSystemReader",
    ]
    for what in ("write", "read"):
        assert_side(document[what])
    assert (
        "asynchronous saves were left out, to be quick or for lack of memory" in (document["notes"])
    )
    assert "caches were dropped before reads" in document["notes"]


def assert_side(side: dict[str, Any]) -> None:
    """Figures agree with the runs that they are made of."""
    assert set(side) == {"ceiling", "contenders", "runs"}
    runs = {run["contender"]: run for run in side["runs"]}
    speed = {name: run["length"] / run["clocks"]["seconds"] / 1e9 for name, run in runs.items()}
    for row in side["contenders"]:
        name = row["contender"]
        run = runs[name]
        assert set(run["clocks"]) == {"seconds", "cpu_s", "machine_cpu_s"}
        assert set(row) == {
            *("contender", "gb_per_s", "share", "cpu_s_per_gb", "peak_bytes", "cached_bytes"),
            *("blocked_s", "way"),
        }
        assert row["gb_per_s"] == dict.fromkeys(("median", "low", "high"), speed[name])
        assert row["share"]["median"] == speed[name] / speed[side["ceiling"]]
        cpu_s_per_gb = run["clocks"]["cpu_s"] / (run["length"] / 1e9)
        assert row["cpu_s_per_gb"]["median"] == cpu_s_per_gb
        of_dcp = name.startswith(("GDS", "stock"))
        assert (row["peak_bytes"] is not None) == of_dcp
        assert (row["blocked_s"] is not None) == of_dcp
        assert row["way"]["proven"] is True
        if name.endswith(", direct"):
            assert row["way"]["text"].startswith("direct")
            # What is not payload, such as `.metadata`, goes through the page cache.
            assert row["cached_bytes"]["high"] < LENGTH * 0.01
        if name.startswith("stock"):
            assert row["way"]["text"].startswith("page cache, 8.")
            assert row["cached_bytes"]["low"] >= LENGTH


def test_a_fio_that_fails_is_left_out(
    bench: Bench, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_on_path(monkeypatch, install(tmp_path / "bin", job="echo 'fio: broken' >&2; exit 1"))
    assert bench(drive, "--quick", "--rounds", "1") == 0
    document = bench.document
    assert (
        "fio could not be used here: [Errno 5] fio (io_uring, 1 MiB, depth 2) failed: status 1, and"
        " it printed 'fio: broken': "
    ) in " ".join(document["notes"])
    assert document["environment"]["fio"] == "fio-0.stand-in"
    assert [point["tool"] for point in document["sweep"]] == ["fio", "fio", "bare"]
    assert list(document["settings"]) == ["bare"]
    assert list(drive.iterdir()) == []


def test_what_a_poor_machine_lacks_is_said(
    bench: Bench, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """No engine in fio, no matplotlib, and no right to drop all caches."""
    only_on_path(monkeypatch, install(tmp_path / "bin", engines="sync null"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "caches").mkdir()
    assert bench(drive, "--quick", "--rounds", "1") == 0
    *_, first, last = capsys.readouterr().out.splitlines()
    assert first == f"{bench.output}.json"
    assert last.startswith("no picture: ")
    assert "pip install 'dcp-gds[report]'" in last
    assert not Path(f"{bench.output}.png").exists()
    notes = bench.document["notes"]
    program = tmp_path / "bin" / "fio"
    assert f"{program} (fio-0.stand-in) has none of the engines that are tried" in notes
    assert (
        "caches were dropped before reads, but inodes and directories were not: that needs root"
    ) in notes


@pytest.mark.parametrize("kind", ["tmpfs", "overlay-on-tmpfs", "btrfs"])
def test_a_cached_filesystem_is_measured_only_when_told(
    bench: Bench,
    mounts: Mounts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    kind: str,
) -> None:
    directory = mounts.directory(kind)
    only_on_path(monkeypatch, tmp_path)
    assert bench(directory, "--quick", "--rounds", "1") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--allow-cached measures it all the same" in said.err
    assert ("host memory" if kind == "tmpfs" else "page cache") in said.err
    assert not Path(f"{bench.output}.json").exists()
    assert list(directory.iterdir()) == []
    if kind != "overlay-on-tmpfs":
        assert bench(directory, "--rounds", "1", "--allow-cached") == 0
        assert bench.document["target"]["direct"] is False
        assert "GDSWriter, direct" not in names(bench.document["write"])
        assert "GDSWriter, async_save" in names(bench.document["write"])
        ways = [row["way"] for row in bench.document["write"]["contenders"]]
        assert all(way["text"].startswith(("page cache, ", "buffered, ")) for way in ways)
        assert all(way["proven"] for way in ways)
        assert list(directory.iterdir()) == []
