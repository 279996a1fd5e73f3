"""`dcp-gds verify` ends with the status of its verdict and says what was and was not checked.

Method: checkpoints of ours and of stock DCP, whole, damaged and unreadable, through `main`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dcp_gds.checkpoint.verifyreport import KEPT_MAX
from dcp_gds.cli.main import main
from tests.checkpoint.shardfiles import flip_bit, items_of
from tests.checkpoint.storage import OURS, STOCK, Storage, save
from tests.checkpoint.verifying import both_kinds, item_named, saved, token_of

Output = pytest.CaptureFixture[str]


def verify(path: Path, *options: str) -> int:
    return main(["verify", str(path), *options])


def test_a_good_checkpoint(tmp_path: Path, capsys: Output) -> None:
    file = saved(tmp_path)
    length = sum(item.length for item in items_of(tmp_path))
    assert verify(tmp_path) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith(f"{tmp_path}: good")
    assert "6 items in 1 file," in out
    assert ", 0 not" in out
    assert err == ""
    assert len(out.splitlines()) == 2
    assert 0 < length < file.stat().st_size


@both_kinds
def test_a_damaged_checkpoint(storage: Storage, tmp_path: Path, capsys: Output) -> None:
    file = saved(tmp_path, storage)
    item = item_named(tmp_path, "large")
    flip_bit(file, offset=item.offset + item.length // 2)
    assert verify(tmp_path) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path}: damaged\n")
    assert "damaged: large: payload: bytes [" in out
    assert str(file) in out


def test_no_more_lines_than_a_reader_can_take(tmp_path: Path, capsys: Output) -> None:
    count = KEPT_MAX + 5
    save({f"x{n}": n for n in range(count)}, tmp_path)
    for item in items_of(tmp_path):
        flip_bit(item.file, offset=item.offset)
    for number in range(count):
        (tmp_path / f"left{number:03}").touch()
    assert verify(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("damaged: x") for line in lines) == KEPT_MAX
    assert "damaged: 5 more" in lines
    assert lines[-1] == "  and 5 more"


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "hostile"])
def test_what_cannot_be_read(kind: str, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "step"
    match kind:
        case "empty":
            path.mkdir()
        case "file":
            path.touch()
        case "hostile":
            saved(path, STOCK)
            (path / ".metadata").write_bytes(b"\x80\x04\x8c\x02os\x8c\x06system\x93.")
    assert verify(path) == 2
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: cannot be read\ncannot be read: ") or kind == "hostile"
    assert ("os.system" in out) == (kind == "hostile")


@pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)
def test_what_could_not_be_compared(storage: Storage, tmp_path: Path, capsys: Output) -> None:
    saved(tmp_path, storage, **({"checksum": False} if storage is OURS else {}))
    assert verify(tmp_path) == 3
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path}: sound as far as it was checked\n")
    reason = "saved with checksum=False" if storage is OURS else ".metadata has no checksum"
    assert f"not checked: {reason}" in out


def test_fast_does_not_claim_the_payload(tmp_path: Path, capsys: Output) -> None:
    saved(tmp_path)
    assert verify(tmp_path, "--fast") == 3
    out = capsys.readouterr().out
    assert "good" not in out
    assert "payload: 0 verified" in out
    assert "not checked: payload was not read (fast)" in out


def test_json(tmp_path: Path, capsys: Output) -> None:
    file = saved(tmp_path)
    assert verify(tmp_path, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["verdict"], value["damage_count"]) == ("good", 0)
    assert value["tokens"] == [token_of(tmp_path)]
    assert value["verified_bytes"] == value["bytes"] > value["unverified_bytes"] == 0
    os.truncate(file, 100)
    assert verify(tmp_path, "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert value["verdict"] == "damaged"
    assert value["damages"][0]["path"] == str(file)


def test_leftovers_are_listed(tmp_path: Path, capsys: Output) -> None:
    saved(tmp_path)
    (tmp_path / f"__3_0-{'ab' * 16}.distcp").write_bytes(bytes(1000))
    assert verify(tmp_path) == 0
    out = capsys.readouterr().out
    assert "no part of the checkpoint: 1 file, 1,000 bytes\n  __3_0-abab" in out


def test_a_name_cannot_steer_the_terminal(tmp_path: Path, capsys: Output) -> None:
    saved(tmp_path)
    (tmp_path / "left\x1b[2J\n").touch()
    assert verify(tmp_path) == 0
    assert "  left\\x1b[2J\\n\n" in capsys.readouterr().out
