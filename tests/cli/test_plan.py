"""`dcp-gds plan` makes a plan of its arguments or of a checkpoint, and refuses what makes none.

Method: the command through `main`, with a real checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dcp_gds.cli.main import main
from tests.checkpoint.storage import OURS, STOCK, Storage, save

Output = pytest.CaptureFixture[str]
EXAMPLE = [
    *("plan", "--params", "70e9", "--dtype", "bf16", "--optimizer", "adamw"),
    *("--world-size", "16", "--gpus-per-node", "8", "--host-ram", "512GB"),
    *("--drives", "8", "--drive-write", "6.25GB/s", "--mtbf", "12h"),
]


def test_the_example(capsys: Output) -> None:
    assert main(EXAMPLE) == 1
    out = capsys.readouterr().out
    assert "* stock async" in out
    assert "456.3 GiB a node of 8" in out
    assert "  streamed" in out
    assert "EVERY" in out


def test_json_and_a_state_that_fits(capsys: Output) -> None:
    assert main([*EXAMPLE, "--params", "7B", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["plan"]["state_bytes"] == 98 * 10**9
    assert value["machine"]["drive_bytes_per_s"] == 6_250_000_000
    assert [way["within_ceiling"] for way in value["plan"]["ways"]] == [True] * 3


@pytest.mark.parametrize("storage", [OURS, STOCK], ids=lambda storage: storage.name)
def test_a_real_checkpoint(storage: Storage, tmp_path: Path, capsys: Output) -> None:
    save({"w": torch.ones(1000, 1000), "b": torch.ones(10)}, tmp_path, storage)
    command = ["plan", "--checkpoint", str(tmp_path), "--drive-write", "1GB/s", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["state_bytes"] == 4_000_040


def test_this_host_by_default(capsys: Output) -> None:
    assert main(["plan", "--params", "1e6", "--drive-write", "1G"]) == 0
    assert "EVERY" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--params", "-1", "--params"),
        ("--params", "0", "0 bytes"),
        ("--dtype", "bf15", "bfloat16"),
        ("--optimizer", "adamx", "adamw"),
        ("--drives", "0", "drives is 0"),
        ("--drive-write", "fast", "--drive-write"),
        ("--drive-write", "-6GB/s", "--drive-write"),
        ("--host-ram", "512 parsecs", "--host-ram"),
        ("--host-ram", "0", "host_bytes"),
        ("--mtbf", "never", "--mtbf"),
        ("--mtbf", "0", "mtbf_s"),
        ("--ceiling", "most", "--ceiling"),
        ("--ceiling", "140%", "ceiling_share"),
        ("--world-size", "0", "world_size"),
    ],
)
def test_wrong_arguments(option: str, value: str, text: str, capsys: Output) -> None:
    assert main([*EXAMPLE, f"{option}={value}"]) == 2
    assert text in capsys.readouterr().err


def test_no_checkpoint(tmp_path: Path, capsys: Output) -> None:
    command = ["plan", "--checkpoint", str(tmp_path), "--drive-write", "1GB/s"]
    assert main(command) == 2
    assert str(tmp_path) in capsys.readouterr().err
