"""Layers: which module of dcp_gds imports which, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGE", "Import", "imports_of", "is_within", "sources_of_package"]

PACKAGE = "dcp_gds"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. `on_import` is False inside functions and `if TYPE_CHECKING`."""

    target: str
    line: int
    on_import: bool


def sources_of_package() -> dict[str, str]:
    """The source text of every module of the package, by its dotted name."""
    top = Path(__file__).parent.parent
    found = {}
    for path in sorted((top / PACKAGE).rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text()
    return found


def imports_of(source: str, *, known: frozenset[str]) -> list[Import]:
    """All imports of a module, wherever they stand; naming `torch.cuda` counts as importing it.

    `known` holds names of modules: `from dcp_gds.io import engine` imports a module when there is
    one of that name, and otherwise something that stands in `dcp_gds.io`.
    """
    return list(_walk(ast.parse(source), known, on_import=True))


def is_within(module: str, room: str) -> bool:
    """Whether `module` is `room` or lies in it."""
    return module == room or module.startswith(f"{room}.")


def _walk(node: ast.AST, known: frozenset[str], *, on_import: bool) -> Iterator[Import]:
    """Imports in `node` and below."""
    match node:
        case ast.Import(names=names):
            yield from (Import(alias.name, node.lineno, on_import) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            assert level == 0, f"line {node.lineno}: imports are absolute here"
            assert module is not None
            for alias in names:
                inner = f"{module}.{alias.name}"
                yield Import(inner if inner in known else module, node.lineno, on_import)
        case ast.Attribute(value=ast.Name(id="torch"), attr="cuda"):
            yield Import("torch.cuda", node.lineno, on_import)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            on_import = False
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            on_import = False
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, known, on_import=on_import)
