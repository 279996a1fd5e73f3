"""A shard file's name stays below the checkpoint's directory: known tricks, and random ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.relativepath import safe_relative_path

PATH = "/ckpt/.metadata"


@pytest.mark.parametrize(
    "name", ["__0_0.distcp", "a/b", "...", "..a", "a b", "größe", ".hidden", "C:x", "x" * 300]
)
def test_a_name_below_the_directory_is_accepted(name: str) -> None:
    assert safe_relative_path(name, path=PATH) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/", "/a", "//a", "a/", "a//b", "./a", "a/."),
        *("../a", "a/..", "a/../b", "a/../../b"),
        *("\\", "..\\a", "a\\..\\b", "C:\\a"),
        *("a\0b", "a\n", "\ud800", "\x1b[2J", "\u202egnp"),
    ],
)
def test_a_name_that_may_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="does not name a shard file") as caught:
        safe_relative_path(name, path=PATH)
    assert repr(name) in str(caught.value)
    assert caught.value.path == PATH


@given(st.text(st.sampled_from("ab./\\"), max_size=8))
def test_an_accepted_name_stays_below_the_directory(name: str) -> None:
    try:
        safe_relative_path(name, path=PATH)
    except CorruptCheckpointError:
        return
    directory = Path("/ckpt")
    assert directory in (directory / name).resolve().parents
