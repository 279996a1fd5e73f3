"""Demo text: real English that every machine has, namely the documentation strings of Python."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

__all__ = ["documentation"]

# Modules that import fast and without side effects. The order is fixed, so all ranks of one
# interpreter train on the same text.
MODULES = (
    "builtins",
    "argparse",
    "collections",
    "contextlib",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "email.message",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "optparse",
    "os",
    "pathlib",
    "pickletools",
    "random",
    "re",
    "shutil",
    "socket",
    "statistics",
    "string",
    "subprocess",
    "tarfile",
    "textwrap",
    "threading",
    "unittest.mock",
    "urllib.request",
    "uuid",
    "zipfile",
)


def documentation() -> bytes:
    """Some hundred thousand bytes of documentation, each text once.

    C docstrings stay under `python -OO`, so that there is always text.
    """
    texts: dict[str, None] = {}
    for name in MODULES:
        for text in _docstrings(importlib.import_module(name)):
            texts.setdefault(inspect.cleandoc(text))
    return "\n\n".join(texts).encode()


def _docstrings(module: ModuleType) -> Iterator[str]:
    """Docstrings of a module, its public functions and classes, and their public methods."""
    if module.__doc__:
        yield module.__doc__
    for _, value in _public(module):
        if inspect.isroutine(value) or inspect.isclass(value):
            yield from _own(value)
        if inspect.isclass(value):
            for _, member in _public(value):
                if inspect.isroutine(member):
                    yield from _own(member)


def _public(owner: object) -> Iterator[tuple[str, object]]:
    """Public attributes by name, without running properties."""
    for name, value in sorted(vars(owner).items()):
        if not name.startswith("_"):
            yield name, value


def _own(value: object) -> Iterator[str]:
    """The docstring of a function or class; the type's own one is no text about the value."""
    text = getattr(value, "__doc__", None)
    if isinstance(text, str) and text:
        yield text
