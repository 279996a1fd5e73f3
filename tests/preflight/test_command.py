"""The command prints the verdict first, as text or JSON, and its exit status says the same.

Method: real runs on this machine's temporary directory and on paths that are wrong; runs in a
process that cannot import torch and friends; verdicts made by hand where a status is at stake.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcp_gds.cli.main import main as dcp_gds
from dcp_gds.preflight.command import SCHEMA, exit_status, main
from dcp_gds.preflight.finding import Finding, Route, Status, Verdict

BARE = "import sys\nsys.modules.update(dict.fromkeys(('torch', 'numpy', 'kvikio', 'rich')))\n"
FIELDS = ["check", "status", "observed", "expected", "remedy", "source"]


def verdict(route: Route, *statuses: Status, tried: bool = True) -> Verdict:
    """A verdict with findings of these statuses."""
    return Verdict(
        "/data", route, tried, "", tuple(Finding("swap", status, "") for status in statuses)
    )


def test_text_has_the_verdict_first_80_columns_and_no_colour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) in (0, 1)
    out = capsys.readouterr().out.splitlines()
    # Only a word that is longer than the line may be.
    assert all(len(line) <= 80 or " " not in line.strip() for line in out[1:])
    assert out[0].startswith(f"{tmp_path}: ")
    assert out[1].startswith("  because ")
    assert not any("\x1b" in line for line in out)
    assert list(tmp_path.iterdir()) == []


def test_json_has_the_documented_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = dcp_gds(["check", "--json", str(tmp_path)])
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["exit_status"]) == (SCHEMA, status)
    (one,) = found["verdicts"]
    assert list(one) == ["path", "route", "tried", "reason", "findings"]
    assert all(list(finding) == FIELDS for finding in one["findings"])


def test_quiet_prints_verdicts_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quiet", "--no-probe", str(tmp_path)])
    assert "remedy" not in capsys.readouterr().out


def test_it_runs_where_only_the_standard_library_is(tmp_path: Path) -> None:
    code = f"{BARE}from dcp_gds.preflight.command import main\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout


def test_module_runs_by_its_name() -> None:
    command = [sys.executable, "-m", "dcp_gds.preflight", "/no/such/directory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nearest directory that exists is /" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", [b"a file", b"new\nline/\x1b[31m", b"\xff\xfe"])
def test_a_path_that_is_no_directory_is_status_2(
    name: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(name)
    if b"/" not in name:
        path.write_bytes(b"")
    assert main([str(path)]) == 2
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "nothing can be written" in " ".join(out.split())


def test_need_is_compared_with_the_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--need", "900000TiB", str(tmp_path)]) == 2
    assert "fail  space" in capsys.readouterr().out


def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--need", "much", "/"])
    assert ended.value.code == 2
    assert "900GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("route", "found", "require", "strict", "status"),
    [
        (Route.GDS, Status.OK, "gds", False, 0),
        (Route.STAGED, Status.OK, "gds", False, 2),
        (Route.STAGED, Status.OK, "direct", False, 0),
        (Route.BUFFERED, Status.OK, "direct", False, 2),
        (Route.BUFFERED, Status.FAIL, None, False, 1),
        (Route.DIRECT, Status.WARN, None, False, 1),
        (Route.DIRECT, Status.SKIP, None, False, 0),
        (Route.DIRECT, Status.SKIP, None, True, 1),
        (Route.NONE, Status.OK, None, False, 2),
    ],
)
def test_exit_status(
    route: Route, found: Status, require: str | None, strict: bool, status: int
) -> None:
    assert exit_status([verdict(route, found)], require=require, strict=strict) == status


def test_gds_that_was_not_tried_does_not_suffice() -> None:
    untried = [verdict(Route.GDS, Status.OK, tried=False)]
    assert exit_status(untried, require="gds", strict=False) == 2
    assert exit_status(untried, require="direct", strict=False) == 0
