"""In CI a skip fails the run, elsewhere it is a skip; a failed comparison of much data stays short.

Method: small test files, run by a pytest of their own with this project's conftest as a plugin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SKIPPING = {
    "call": "def test_it():\n    pytest.skip('no such tool')\n",
    "mark": "@pytest.mark.skip(reason='no such tool')\ndef test_it():\n    pass\n",
    "fixture": "@pytest.fixture\ndef tool():\n    pytest.skip('no such tool')\n"
    "def test_it(tool):\n    pass\n",
    "module": "pytest.skip('no such tool', allow_module_level=True)\n",
}
ALLOWED = {
    "gpu": "@pytest.mark.gpu\n" + SKIPPING["call"],
    "xfail": "@pytest.mark.xfail(reason='known')\ndef test_it():\n    assert False\n",
    "pass": "def test_it():\n    pass\n",
}
UNEQUAL = """
def test_long():
    same = bytes(4 << 20)
    assert {'same': same, 'other': same} == {'same': same, 'other': same + b'x'}

def test_short():
    assert {'one': 1, 'two': 2} == {'one': 1, 'two': 3}
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a test file of each kind."""
    directory = tmp_path_factory.mktemp("samples")
    for kind, source in (SKIPPING | ALLOWED).items():
        (directory / f"test_{kind}.py").write_text(f"import pytest\n{source}")
    return directory


def run_pytest(directory: Path, *, ci: str) -> tuple[int, str]:
    """Run all files of `directory`; return pytest's exit status and its output."""
    options = ["-ra", "--color=no", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
    paths = ["--rootdir", str(directory), "-c", os.devnull, str(directory)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, *paths],
        cwd=ROOT,
        env=os.environ | {"CI": ci, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_skip_fails_in_ci_and_says_why(samples: Path) -> None:
    status, output = run_pytest(samples, ci="true")
    assert status == pytest.ExitCode.TESTS_FAILED, output
    because = "CI must run this test, and it was skipped: "
    assert output.count(because) >= len(SKIPPING)
    for kind in SKIPPING:
        lines = [line for line in output.splitlines() if f"test_{kind}.py" in line]
        assert any(line.startswith(("FAILED", "ERROR")) for line in lines), output
    assert output.count("no such tool") >= len(SKIPPING)


def test_a_gpu_and_an_expected_failure_are_let_pass_in_ci(samples: Path) -> None:
    _, output = run_pytest(samples, ci="true")
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed" in output


def test_a_skip_is_a_skip_elsewhere(samples: Path) -> None:
    status, output = run_pytest(samples, ci="")
    assert status == pytest.ExitCode.OK, output
    assert f"1 passed, {len(SKIPPING) + 1} skipped, 1 xfailed" in output


def test_a_comparison_of_much_data_stays_short(tmp_path: Path) -> None:
    (tmp_path / "test_unequal.py").write_text(UNEQUAL)
    status, output = run_pytest(tmp_path, ci="true")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "2 failed" in output
    assert len(output) < 5000
    assert "at 'other': b'" in output
    assert "at 'same': b'" not in output
    # pytest's own words for what is short.
    assert "{'two': 2} != {'two': 3}" in output
