"""Whatever a host's files hold, each check ends with findings: at worst a skip that says why.

Method: hypothesis takes a host, and replaces some of its files by bytes, by parts of themselves, by
directories and links, or by nothing. A pipe that nobody writes to stands for a file that hangs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcp_gds.preflight import check
from dcp_gds.preflight.finding import Status
from tests.preflight.test_hosts import HEALTHY, HOSTS, verdict_on
from tests.preflight.trees import FixtureHost, build

WORDS = ["-", " - ", ":", "/", "..", "0", "-1", "9" * 30, "\n", "nvme", "[", "]", "{", "\\040", "é"]
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(WORDS), max_size=40).map(lambda words: " ".join(words).encode()),
    st.sampled_from([None, "directory", "loop", "cut", "doubled"]),
)


def links(texts: Mapping[str, str | bytes | None]) -> set[str]:
    """Names that lead elsewhere."""
    return {name for name, text in texts.items() if isinstance(text, str) and text[:3] == "-> "}


def spoil(path: Path, content: bytes | str | None) -> None:
    """Put something else into a file's place."""
    before = path.read_bytes()
    path.unlink()
    match content:
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "cut":
            path.write_bytes(before[: len(before) // 2])
        case "doubled":
            path.write_bytes(before + before)
        case bytes():
            path.write_bytes(content)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(host=st.sampled_from(HOSTS), data=st.data())
def test_a_spoiled_host_gets_a_verdict(host: FixtureHost, data: st.DataObject) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        build(host, root)
        texts = {**host.base, **host.changes}
        names = [name for name in texts if (root / name).is_file() and name not in links(texts)]
        chosen = st.lists(st.sampled_from(sorted(names)), min_size=1, max_size=4, unique=True)
        for name in data.draw(chosen):
            spoil(root / name, data.draw(CONTENTS))
        verdict = verdict_on(host, root)
    finally:
        shutil.rmtree(root)
    assert verdict.reason
    for finding in verdict.findings:
        assert finding.check
        assert finding.observed
        # A check that raised something unforeseen would look as if it had not ended.
        assert "did not end" not in finding.observed
        assert finding.status not in (Status.WARN, Status.FAIL) or finding.remedy


def test_a_file_that_hangs_costs_its_own_check_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHECK_TIMEOUT_S", 0.3)
    build(HEALTHY, tmp_path)
    pipe = tmp_path / "proc/sys/vm/swappiness"
    pipe.unlink()
    os.mkfifo(pipe)
    verdict = verdict_on(HEALTHY, tmp_path)
    # The reader waits in open(2) until somebody writes.
    os.close(os.open(pipe, os.O_RDWR))
    assert verdict.route is HEALTHY.route
    late = [each for each in verdict.findings if "did not end within 0.3 s" in each.observed]
    assert [(each.check, each.status) for each in late] == [("vm", Status.SKIP)]
