"""`dcp-gds sysctl` shows, prints, sets and checks.

Method: a made-up host in a directory, through `main`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dcp_gds.cli.main import main
from tests.hostmem.vmsettings import host_with

Output = pytest.CaptureFixture[str]
GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return host_with(tmp_path, ram_bytes=64 * GIB, swappiness=0)


def test_showing(host: Path, capsys: Output) -> None:
    assert main(["sysctl", "--root", str(host)]) == 0
    out = capsys.readouterr().out
    assert "* vm.swappiness" in out
    assert "vm.min_free_kbytes" in out
    assert "up to 12.8 GiB" in out


def test_check_apply_check(host: Path, capsys: Output) -> None:
    assert main(["sysctl", "--root", str(host), "--check"]) == 1
    capsys.readouterr()
    assert main(["sysctl", "--root", str(host), "--apply"]) == 0
    out = capsys.readouterr().out
    assert "vm.swappiness = 1 (it was 0)" in out
    assert "back: sysctl -w " in out
    assert main(["sysctl", "--root", str(host), "--check"]) == 0
    assert "all is as advised" in capsys.readouterr().out
    assert main(["sysctl", "--root", str(host), "--apply"]) == 0
    assert "nothing to set" in capsys.readouterr().out


def test_a_large_host(tmp_path: Path, capsys: Output) -> None:
    host = host_with(tmp_path, ram_bytes=2048 * GIB)
    assert main(["sysctl", "--root", str(host), "--apply"]) == 0
    assert "vm.dirty_bytes = 8589934592 (it was vm.dirty_ratio = 20)" in capsys.readouterr().out


def test_conf_and_json(host: Path, capsys: Output) -> None:
    assert main(["sysctl", "--root", str(host), "--conf"]) == 0
    assert "\nvm.swappiness = 1\n" in capsys.readouterr().out
    assert main(["sysctl", "--root", str(host), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in value["directives"]} >= {"swappiness", "dirty_bytes"}


def test_a_directory_without_proc(tmp_path: Path, capsys: Output) -> None:
    assert main(["sysctl", "--root", str(tmp_path)]) == 2
    assert "meminfo" in capsys.readouterr().err
