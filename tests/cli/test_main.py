"""The entry point finds commands without importing others and turns every failure into a status.

Method: commands made for the purpose that return, print or raise; real processes where the state of
a process matters, such as its imports and a closed pipe.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from dcp_gds.cli.main import COMMANDS, Command, main
from dcp_gds.errors import ConfigError, NotCommittedError

Install = Callable[[Callable[[argparse.Namespace], int]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes a function the command `try`, which has the option --word."""

    def make(run: Callable[[argparse.Namespace], int]) -> None:
        module = ModuleType("tests.cli.command_to_try")
        vars(module)["configure"] = lambda parser: parser.add_argument("--word", default="none")
        vars(module)["run"] = run
        monkeypatch.setitem(sys.modules, module.__name__, module)
        command = Command("try", "what a test tries", module.__name__)
        monkeypatch.setattr("dcp_gds.cli.main.COMMANDS", (*COMMANDS, command))

    return make


def fail(error: BaseException) -> Callable[[argparse.Namespace], int]:
    """A command that raises."""

    def run(_: argparse.Namespace) -> int:
        raise error

    return run


def run_process(*lines: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run lines of Python in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_command_has_a_module_and_help(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command.name, "--help"])
    assert ended.value.code == 0
    assert command.name in capsys.readouterr().out
    module = importlib.import_module(command.module)
    assert sorted(module.__all__)[:2] == ["configure", "run"]


def test_help_names_all_commands_and_does_not_import_torch() -> None:
    ended = run_process(
        "import sys",
        "from dcp_gds.cli.main import main",
        "try: main(['--help'])",
        "finally: print('torch' in sys.modules)",
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "False"
    for command in COMMANDS:
        assert f"{command.name} " in ended.stdout
        assert command.help in " ".join(ended.stdout.split())


def test_version_is_that_of_the_distribution(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dcp_gds.__version__", "1.2.3", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "dcp-gds 1.2.3\n"


def test_version_without_a_distribution_says_so() -> None:
    ended = run_process(
        "import importlib.metadata as metadata",
        "from dcp_gds.cli.main import main",
        "def missing(name): raise metadata.PackageNotFoundError(name)",
        "metadata.version = missing",
        "main(['--version'])",
    )
    assert (ended.returncode, ended.stdout) == (0, "dcp-gds (not installed, version unknown)\n")


@pytest.mark.parametrize(
    "words", [[], ["no-such-command"], ["try", "--no-such-option"], ["try", "--wor", "x"]]
)
def test_wrong_usage_is_status_2_and_runs_nothing(
    words: list[str], install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(fail(AssertionError("ran")))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: dcp-gds" in capsys.readouterr().err


def test_options_and_status_pass_through(install: Install) -> None:
    seen: list[str] = []

    def run(arguments: argparse.Namespace) -> int:
        seen.append(arguments.word)
        return 7

    install(run)
    assert main(["try", "--word", "said"]) == 7
    assert seen == ["said"]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("steps [bold]is[/bold] 0;\nexpected " + "a long text " * 20 + "at the end"),
        NotCommittedError("/nowhere"),
    ],
)
def test_error_is_one_line_on_stderr_and_status_2(
    error: ConfigError | NotCommittedError, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(fail(error))
    assert main(["try"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"dcp-gds: error: {' '.join(str(error).split())}\n"


def test_bug_keeps_its_traceback(install: Install) -> None:
    install(fail(KeyError("a bug")))
    with pytest.raises(KeyError, match="a bug"):
        main(["try"])


def test_interrupt_is_status_130_without_words(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(fail(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("lines", [1, 100_000])
def test_closed_pipe_ends_quietly(lines: int) -> None:
    """One line stays in the buffer until the end, many do not."""
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    assert reader.stdin is not None
    reader.wait()
    with reader.stdin:
        ended = run_process(
            "import sys, types",
            "import dcp_gds.cli.main as entry",
            "module = sys.modules['command'] = types.ModuleType('command')",
            "module.configure = lambda parser: None",
            f"module.run = lambda _: sys.stdout.write('a line of text\\n' * {lines}) * 0",
            "entry.COMMANDS = (entry.Command('try', '', 'command'),)",
            "sys.exit(entry.main(['try']))",
            stdout=reader.stdin.fileno(),
        )
    assert (ended.returncode, ended.stderr) == (141, "")
