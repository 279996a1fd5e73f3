"""Mount: the filesystem of a path is the one that is really there.

Method: real mounts, also one above another and one with odd characters in its name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dcp_gds.io import mount as mount_module
from dcp_gds.io.mount import mount_of
from tests.filesystems import KINDS, Mounts, mount


@pytest.mark.root
@pytest.mark.parametrize("kind", KINDS)
def test_filesystem_is_named(mounts: Mounts, kind: str) -> None:
    directory = mounts.directory(kind)
    (directory / "file").touch()
    for path in (directory, directory / "file"):
        found = mount_of(path)
        assert found is not None
        assert found.filesystem == kind.split("-", 1)[0]
        assert found.point == directory.parent
        assert found.source.startswith(("/dev/loop", "overlay", "tmpfs", "ramfs"))


@pytest.mark.root
def test_upper_of_two_mounts_counts_and_odd_names_are_read_back(tmp_path: Path) -> None:
    with mount("tmpfs", tmp_path / "below", "-t", "tmpfs") as below:
        (below / "inner").mkdir()
        with mount("a b\\c", below / "inner" / "x\ty z\\040", "-t", "ramfs") as point:
            found = mount_of(point)
            assert found is not None
            assert (found.filesystem, found.point, found.source) == ("ramfs", point, "a b\\c")
        outer = mount_of(below / "inner")
        assert outer is not None
        assert (outer.filesystem, outer.point) == ("tmpfs", below)


def test_what_cannot_be_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mount_of(tmp_path / "missing") is None
    # A mount of another namespace has an id that the list lacks.
    monkeypatch.setattr(mount_module, "_mount_id", lambda _: "0")
    assert mount_of(tmp_path) is None
