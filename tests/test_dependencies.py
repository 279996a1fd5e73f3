"""Every dependency has a reason and, where we install it, one pinned version.

Method: pyproject.toml, the constraints of the development environment and the table in
CONTRIBUTING.md are read and compared.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    """The package's name without version, extras and markers, as the index compares it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def declared(*, extras: bool) -> set[str]:
    """Names that pyproject.toml asks for, with or without those of the extras."""
    lists = [PROJECT["project"]["dependencies"], PROJECT["build-system"]["requires"]]
    lists += PROJECT["dependency-groups"].values()
    if extras:
        lists += PROJECT["project"]["optional-dependencies"].values()
    return {name_of(each) for names in lists for each in names if isinstance(each, str)}


def pins() -> dict[str, str]:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    return {name_of(name): version for name, version in (line.split("==") for line in pinned)}


@pytest.mark.parametrize("name", sorted(declared(extras=True)))
def test_a_dependency_has_a_reason(name: str) -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    reasons = {
        package: why
        for packages, why in rows
        for package in re.sub(r" \(\w+\)", "", packages).split(", ")
    }
    assert len(reasons[name].split()) >= 3


@pytest.mark.parametrize("name", sorted(declared(extras=False)))
def test_a_dependency_that_we_install_is_pinned(name: str) -> None:
    assert name in pins()
