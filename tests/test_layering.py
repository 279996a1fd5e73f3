"""Imports point one way, and what only some machines have is imported in one place.

Method: the imports are read from the syntax tree of every module, so that those inside functions
count too; what must run on a bare node is imported in a process where torch and friends cannot be.
"""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layers import PACKAGE, imports_of, is_within, sources_of_package

# A room may import itself and every room with a lower number; rooms of the same number know nothing
# of each other. The longest name that fits a module is its room.
LEVELS = {
    "dcp_gds.errors": 0,
    "dcp_gds.config": 1,
    "dcp_gds.format": 2,
    "dcp_gds.hostmem.budget": 2,
    "dcp_gds.hostmem.cgrouplimit": 1,
    "dcp_gds.hostmem": 3,
    # Selecting an engine gives the reasons that the check of a node gives, in the same words.
    "dcp_gds.preflight": 4,
    "dcp_gds.io": 5,
    "dcp_gds.checkpoint": 6,
    # The public face and the benchmark; commands are users of them.
    "dcp_gds.benchmark": 7,
    "dcp_gds": 7,
    "dcp_gds.cli": 8,
}
ONLY_IMPORTER = {
    "dcp_gds._core": "dcp_gds.io.direct",
    "cupy": "dcp_gds.io.gpuchecksum",
    "kvikio": "dcp_gds.io.gds",
    "torch.cuda": "dcp_gds.io.device",
}
NOT_ON_A_BARE_NODE = ("torch", "numpy", "kvikio", "cupy", "dcp_gds._core")
# Rooms that must run there; commands import what they need only when they run.
RUNS_ON_A_BARE_NODE = (
    "dcp_gds",
    "dcp_gds.errors",
    "dcp_gds.config",
    "dcp_gds.hostmem",
    "dcp_gds.preflight",
)
ENTRY_POINT = "dcp_gds.cli.main"
BLOCK = f"import sys\nsys.modules.update(dict.fromkeys({NOT_ON_A_BARE_NODE}))\n"


def violations(sources: dict[str, str]) -> list[str]:
    """Every import that points the wrong way, as `importer:line imports target`."""
    known = frozenset({*sources, *LEVELS, *ONLY_IMPORTER})
    return [
        f"{module}:{each.line} imports {each.target}"
        for module, source in sources.items()
        for each in imports_of(source, known=known)
        if not may_import(module, each.target)
    ]


def may_import(module: str, target: str) -> bool:
    for restricted, importer in ONLY_IMPORTER.items():
        if is_within(target, restricted):
            return module == importer
    if not is_within(target, PACKAGE):
        return True
    home, other = room_of(module), room_of(target)
    return home == other or LEVELS[other] < LEVELS[home]


def room_of(module: str) -> str:
    return max((room for room in LEVELS if is_within(module, room)), key=len)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )


def test_imports_point_one_way() -> None:
    sources = sources_of_package()
    assert "dcp_gds.checkpoint.writer" in sources
    assert violations(sources) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dcp_gds.format.footer", "import dcp_gds.io.engine"),
        ("dcp_gds.format.footer", "def late():\n    from dcp_gds.io import engine"),
        ("dcp_gds.format.footer", "from dcp_gds.hostmem.budget import Budget"),
        ("dcp_gds.io.engine", "if TYPE_CHECKING:\n    from dcp_gds.checkpoint.report import X"),
        ("dcp_gds.io.engine", "from dcp_gds import GDSWriter"),
        ("dcp_gds.errors", "import dcp_gds.config"),
        ("dcp_gds.preflight.check", "import dcp_gds.io.selection"),
        ("dcp_gds.hostmem.watch", "from dcp_gds.preflight.node import Node"),
        ("dcp_gds.checkpoint.writer", "from dcp_gds import _core"),
        ("dcp_gds.io.buffered", "from dcp_gds._core import crc32"),
        ("dcp_gds.io.direct", "import kvikio.defaults"),
        ("dcp_gds.io.gdsengine", "import kvikio"),
        ("dcp_gds.io.gds", "from cupy.cuda import Device"),
        ("dcp_gds.io.gds", "from torch import cuda"),
        ("dcp_gds.checkpoint.writer", "def late():\n    return torch.cuda.is_available()"),
    ],
)
def test_an_import_that_points_the_wrong_way_is_seen(module: str, source: str) -> None:
    assert len(violations({module: source, "dcp_gds.io.engine": source})) >= 1
    assert len(violations({module: source})) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dcp_gds.io.direct", "from dcp_gds import _core, errors"),
        ("dcp_gds.io.staging", "from dcp_gds.hostmem.budget import Budget"),
        ("dcp_gds.io.selection", "from dcp_gds.preflight.shortform import findings_for"),
        ("dcp_gds.io.device", "import torch\nx = torch.cuda.is_available()"),
        ("dcp_gds.io.gds", "import kvikio.defaults\nx = torch.version.cuda"),
        ("dcp_gds.cli.main", "from dcp_gds import GDSWriter\nimport dcp_gds.format.footer"),
        ("dcp_gds", "import dcp_gds.checkpoint.writer"),
    ],
)
def test_an_import_that_points_the_right_way_is_let_pass(module: str, source: str) -> None:
    assert violations({module: source}) == []


def test_no_module_imports_itself_in_a_circle() -> None:
    sources = sources_of_package()
    graph = {
        module: {
            each.target for each in imports_of(source, known=frozenset(sources)) if each.on_import
        }
        for module, source in sources.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_native_code_knows_neither_torch_nor_cuda() -> None:
    files = [
        path
        for path in (Path(__file__).parent.parent / "csrc").rglob("*")
        if path.suffix in {".cpp", ".hpp"}
    ]
    assert files
    includes = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|cuda|cufile|kvikio)")
    assert [path.name for path in files if includes.search(path.read_text())] == []


def test_a_bare_node_can_import_what_it_must_run() -> None:
    names = [name for name in sources_of_package() if room_of(name) in RUNS_ON_A_BARE_NODE]
    assert {"dcp_gds", "dcp_gds.errors", "dcp_gds.config"} <= set(names)
    done = run_python(f"{BLOCK}import {ENTRY_POINT}, {', '.join(names)}")
    assert done.returncode == 0, done.stderr


def test_a_bare_node_is_told_what_the_writer_lacks() -> None:
    done = run_python(f"{BLOCK}import dcp_gds\ndcp_gds.GDSWriter")
    assert done.returncode == 1
    assert "torch" in done.stderr.splitlines()[-1]


def test_importing_the_package_leaves_torch_alone() -> None:
    done = run_python("import sys, dcp_gds\nassert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
