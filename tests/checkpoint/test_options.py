"""Options do what they say, and reports say what was done.

Method: the reports and callbacks of real saves and loads under each option.
"""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from dcp_gds import GDSReader, GDSWriter
from dcp_gds.errors import ConfigError, UnsupportedError
from tests.checkpoint.refusal import refused
from tests.checkpoint.storage import dcp_load, dcp_save, load, save

MIB = 1 << 20
KIB = 1 << 10


def test_gds_is_refused_where_it_cannot_run(tmp_path: Path) -> None:
    with refused(UnsupportedError, "gds"):
        save({"x": torch.ones(3)}, tmp_path / "new", engine="gds")
    save({"x": torch.ones(3)}, tmp_path / "there")
    with refused(UnsupportedError, "gds"):
        load({"x": torch.ones(3)}, tmp_path / "there", engine="gds")
    assert list((tmp_path / "new").glob("*.distcp")) == []


@pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "plain"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "no-sync"])
@pytest.mark.parametrize("engine", ["auto", "direct", "buffered"])
def test_options_of_a_save(engine: str, sync: bool, checksum: bool, tmp_path: Path) -> None:
    state = {"x": torch.arange(3 * MIB), "y": torch.ones(5), "n": 3}
    with GDSWriter(
        tmp_path,
        engine=engine,
        sync=sync,
        checksum=checksum,
        queue_depth=1,
        transfer_bytes=64 * KIB,
        staging_bytes_max=4 * MIB,
    ) as writer:
        assert writer.report is None
        dcp_save(dict(state), storage_writer=writer, no_dist=True)
        report = writer.report
    assert report is not None
    assert (report.synced, report.checksums, report.items, report.files) == (sync, checksum, 3, 1)
    assert report.engine == (engine if engine != "auto" else report.engine)
    assert report.engine_reason
    assert report.bytes >= 24 * MIB + 20
    assert sum(report.bytes_by_engine.values()) >= report.bytes
    assert report.staging_bytes_peak <= 4 * MIB
    assert 0 <= report.sync_seconds <= report.seconds
    assert report.gb_per_s > 0
    assert json.loads(report.to_json())["items"] == 3
    assert pickle.loads(pickle.dumps(report)) == report
    target = {"x": torch.zeros_like(state["x"]), "y": torch.zeros(5), "n": 0}
    load(target, tmp_path)
    assert torch.equal(target["x"], state["x"])


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "trust"])
@pytest.mark.parametrize("engine", ["auto", "direct", "buffered"])
def test_options_of_a_load(engine: str, verify: bool, tmp_path: Path) -> None:
    save({"x": torch.arange(3 * MIB)}, tmp_path)
    target = torch.zeros(3 * MIB, dtype=torch.int64)
    with GDSReader(
        tmp_path,
        engine=engine,
        verify=verify,
        queue_depth=1,
        transfer_bytes=64 * KIB,
        staging_bytes_max=4 * MIB,
    ) as reader:
        assert reader.report is None
        dcp_load({"x": target}, storage_reader=reader, no_dist=True)
        report = reader.report
    assert report is not None
    assert torch.equal(target, torch.arange(3 * MIB))
    assert report.bytes == 24 * MIB
    assert report.bytes_read >= 24 * MIB
    assert (report.verified_bytes, report.unverified_bytes) == (
        (24 * MIB, 0) if verify else (0, 24 * MIB)
    )
    assert report.token is not None
    assert report.staging_bytes_peak <= 4 * MIB
    assert json.loads(report.to_json())["verified_bytes"] == report.verified_bytes
    assert pickle.loads(pickle.dumps(report)) == report


def test_progress_and_commit(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    committed: list[tuple[Path, bool]] = []

    def on_commit(path: Path) -> None:
        committed.append((path, (path / ".metadata").exists()))

    with GDSWriter(
        tmp_path,
        progress=lambda done, total: seen.append((done, total)),
        on_commit=on_commit,
        transfer_bytes=64 * KIB,
    ) as writer:
        dcp_save({"x": torch.ones(MIB)}, storage_writer=writer, no_dist=True)
    assert committed == [(tmp_path, True)]
    check_progress(seen)
    seen.clear()
    with GDSReader(tmp_path, progress=lambda done, total: seen.append((done, total))) as reader:
        dcp_load({"x": torch.zeros(MIB)}, storage_reader=reader, no_dist=True)
    check_progress(seen)


def check_progress(seen: list[tuple[int, int]]) -> None:
    """Progress rises to its total, which is the same from the first call to the last."""
    assert seen
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {seen[-1][0]}
    assert seen[-1][1] >= 4 * MIB


def test_a_callback_that_fails_fails_the_save(tmp_path: Path) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError(done, total)

    with refused(ZeroDivisionError):
        save({"x": torch.ones(MIB)}, tmp_path, progress=fail)
    assert list(tmp_path.iterdir()) == []
    save({"x": torch.ones(MIB)}, tmp_path)


def test_closed(tmp_path: Path) -> None:
    writer, reader = GDSWriter(tmp_path), GDSReader(tmp_path)
    dcp_save({"x": torch.ones(3)}, storage_writer=writer, no_dist=True)
    dcp_load({"x": torch.ones(3)}, storage_reader=reader, no_dist=True)
    for closable in (writer, reader):
        closable.close()
        closable.close()
    with refused(ConfigError, "closed"):
        dcp_save({"x": torch.ones(3)}, storage_writer=writer, no_dist=True)
    with refused(ConfigError, "closed"):
        dcp_load({"x": torch.ones(3)}, storage_reader=reader, no_dist=True)


@pytest.mark.parametrize(
    "option", ["overwrite=no", "checksum=None", "sync=0", "host_memory_fraction=2"]
)
def test_wrong_values_for_a_writer(option: str, tmp_path: Path) -> None:
    name, _, text = option.partition("=")
    value = {"no": "no", "None": None, "0": 0, "2": 2.0}[text]
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=name):
        GDSWriter(tmp_path, **wrong)


@pytest.mark.parametrize("name", ["verify", "strict_dtype", "trusted"])
def test_wrong_values_for_a_reader(name: str, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {name: "no"}
    with pytest.raises(ConfigError, match=f"{name} is 'no'; expected True or False"):
        GDSReader(tmp_path, **wrong)


def test_addresses_are_no_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="s3://bucket"):
        GDSWriter("s3://bucket/step")
    with pytest.raises(ConfigError, match="s3://bucket"):
        dcp_save(
            {"x": torch.ones(3)},
            checkpoint_id="s3://bucket/step",
            storage_writer=GDSWriter("here"),
            no_dist=True,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_save_is_not_finished_as_another_threads(tmp_path: Path) -> None:
    writers: list[GDSWriter] = []
    others: list[BaseException | None] = []

    def overtake(done: int, total: int) -> None:
        if not others:
            others.append(None)
            thread = threading.Thread(target=save_elsewhere)
            thread.start()
            thread.join()

    def save_elsewhere() -> None:
        dcp_save(
            {"x": torch.zeros(3)},
            checkpoint_id=tmp_path / "second",
            storage_writer=writers[0],
            no_dist=True,
        )

    writers.append(GDSWriter(tmp_path / "first", progress=overtake))
    with refused(ConfigError, tmp_path / "second"):
        dcp_save({"x": torch.ones(MIB)}, storage_writer=writers[0], no_dist=True)
    assert not (tmp_path / "first" / ".metadata").exists()
    target = {"x": torch.ones(3)}
    load(target, tmp_path / "second")
    assert target["x"].eq(0).all()
