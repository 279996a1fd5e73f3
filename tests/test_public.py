"""The public face: what `__all__` lists is there, sorted, and no more; it says no before any I/O.

Method: every module of the package is imported and compared with its own `__all__`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dcp_gds
from dcp_gds.config import (
    QUEUE_DEPTH_MAX,
    STAGING_BYTES_MIN,
    TRANSFER_BYTES_MAX,
    TRANSFER_BYTES_MIN,
)
from dcp_gds.errors import ConfigError
from tests.layers import sources_of_package

FACE = [
    *("GDSReader", "GDSWriter", "HostMemoryWatch", "LoadReport", "SaveReport"),
    *("__version__", "errors"),
]
WRONG_OPTIONS = [
    ("engine", "fast"),
    ("engine", None),
    ("queue_depth", 0),
    ("queue_depth", QUEUE_DEPTH_MAX + 1),
    ("queue_depth", True),
    ("queue_depth", 1.5),
    ("transfer_bytes", TRANSFER_BYTES_MIN // 2),
    ("transfer_bytes", TRANSFER_BYTES_MAX * 2),
    ("transfer_bytes", TRANSFER_BYTES_MIN + 4096),
    ("transfer_bytes", "8MiB"),
    ("staging_bytes_max", STAGING_BYTES_MIN - 1),
    ("staging_bytes_max", None),
]


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, each by name: the order of ruff's RUF022."""
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


# These need cuFile and CUDA as soon as they are imported: of them only the text is looked at.
OF_A_GPU_NODE = (
    "dcp_gds.io.gds",
    "dcp_gds.io.gdsengine",
    "dcp_gds.io.gdsproof",
    "dcp_gds.io.gdswindow",
    "dcp_gds.io.gpuchecksum",
)


@pytest.mark.parametrize("module", OF_A_GPU_NODE)
def test_what_a_module_of_a_gpu_node_promises_is_there_and_sorted(module: str) -> None:
    body = ast.parse(sources_of_package()[module]).body
    assigned = [each for each in body if isinstance(each, ast.Assign)]
    values = {
        each.targets[0].id: each.value for each in assigned if isinstance(each.targets[0], ast.Name)
    }
    promised = ast.literal_eval(values["__all__"])
    defined = {each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    assert promised == sorted(promised, key=order)
    assert promised
    assert set(promised) <= defined | set(values)


@pytest.mark.parametrize("module", sorted(set(sources_of_package()) - set(OF_A_GPU_NODE)))
def test_what_a_module_promises_is_there_and_sorted(module: str) -> None:
    loaded = importlib.import_module(module)
    promised = getattr(loaded, "__all__", [])
    assert promised == sorted(promised, key=order)
    for name in promised:
        assert hasattr(loaded, name), name
    # Only a package's own file, and one that is run and not imported, may promise nothing.
    assert promised or hasattr(loaded, "__path__") or module.endswith(".__main__")


def test_the_face_is_this_and_no_more() -> None:
    assert dcp_gds.__all__ == FACE
    assert dir(dcp_gds) == FACE
    with pytest.raises(AttributeError, match="no attribute 'GDSWritre'"):
        dcp_gds.GDSWritre  # type: ignore[attr-defined]  # noqa: B018 - a misspelt name is the test


def test_the_face_shows_each_name_where_it_lives() -> None:
    assert dcp_gds.GDSWriter.__module__ == "dcp_gds.checkpoint.writer"
    assert dcp_gds.GDSReader.__module__ == "dcp_gds.checkpoint.reader"
    assert dcp_gds.SaveReport.__module__ == "dcp_gds.checkpoint.report"
    assert dcp_gds.LoadReport.__module__ == "dcp_gds.checkpoint.report"
    assert dcp_gds.__version__ == importlib.metadata.version("dcp-gds")


@pytest.mark.parametrize("make", [dcp_gds.GDSWriter, dcp_gds.GDSReader])
@pytest.mark.parametrize(("option", "value"), WRONG_OPTIONS)
def test_a_wrong_option_is_refused_before_any_io(
    make: Callable[..., Any], option: str, value: object, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoint"
    with pytest.raises(ConfigError, match=option) as caught:
        make(directory, **{option: value})
    assert repr(value) in str(caught.value)
    assert not directory.exists()


@pytest.mark.parametrize("make", [dcp_gds.GDSWriter, dcp_gds.GDSReader])
def test_options_are_keyword_only(make: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="positional"):
        make(tmp_path, "direct")
