"""The cuFile probe tries both directions, and each way in which cuFile can fail is a finding.

Method: a simulated libcuda and libcufile, preloaded into the probe's process, with a fault in each
call; the libraries of real GPUs are not here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from dcp_gds.preflight.check import check_path
from dcp_gds.preflight.cufileprobe import _write_settings
from dcp_gds.preflight.facts import Facts, ask_cufile
from dcp_gds.preflight.finding import Route
from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine
from tests.gdssim.fault import Action, Fault
from tests.preflight.test_hosts import HEALTHY
from tests.preflight.trees import build

FAULTS = {
    "device": (Fault(function="cuInit", result=100), {"step": "cuInit", "code": 100}),
    "driver": (
        Fault(function="cuFileDriverOpen", result=5001),
        {"step": "cuFileDriverOpen", "code": 5001},
    ),
    "handle": (
        Fault(function="cuFileHandleRegister", result=5027),
        {"step": "cuFileHandleRegister", "code": 5027},
    ),
    "buffer": (
        Fault(function="cuFileBufRegister", result=5016),
        {"step": "cuFileBufRegister", "code": 5016},
    ),
    "write": (
        Fault(function="cuFileWrite", result=-5, error=5),
        {"step": "cuFileWrite", "code": 5},
    ),
    "short": (Fault(function="cuFileWrite", result=4096), {"step": "cuFileWrite", "code": 0}),
    "read": (Fault(function="cuFileRead", result=-5, error=5), {"step": "cuFileRead", "code": 5}),
}


def probe(
    directory: Path,
    libraries: Libraries,
    monkeypatch: pytest.MonkeyPatch,
    faults: Sequence[Fault] = (),
    *,
    timeout_s: float = 60.0,
) -> Facts:
    """Run the probe on a machine with faults."""
    for name, value in Machine(libraries=libraries, faults=faults).variables().items():
        monkeypatch.setenv(name, value)
    library = str(libraries.cufile)
    return ask_cufile(str(directory), library=library, properties={}, timeout_s=timeout_s)


def test_gpu_memory_goes_there_and_back(
    tmp_path: Path, gdssim: Libraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, root = tmp_path / "target", tmp_path / "host"
    target.mkdir()
    facts = probe(target, gdssim, monkeypatch)
    assert facts.failure == ""
    assert {name: facts.seen[name] for name in ("wrote", "read")} == {"wrote": True, "read": True}
    assert facts.seen["bytes_per_s"] > 0
    assert list(target.iterdir()) == []
    node = HEALTHY.node(build(HEALTHY, root))
    verdict = check_path("/data", node, Facts(HEALTHY.facts), cufile=facts)
    assert (verdict.route, verdict.tried) == (Route.GDS, True)


@pytest.mark.parametrize(("fault", "seen"), FAULTS.values(), ids=FAULTS)
def test_a_call_that_fails_is_named(
    fault: Fault,
    seen: dict[str, object],
    tmp_path: Path,
    gdssim: Libraries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert probe(tmp_path, gdssim, monkeypatch, [fault]) == Facts(seen)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("action", "failure"),
    [
        (Action.ABORT, "was ended by SIGABRT"),
        (Action.HOLD, "did not answer within 3 s"),
    ],
)
def test_a_driver_that_aborts_or_hangs_is_a_finding(
    action: Action,
    failure: str,
    tmp_path: Path,
    gdssim: Libraries,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Fault(function="cuFileDriverOpen", action=action)
    timeout_s = 3.0 if action is Action.HOLD else 60.0
    facts = probe(tmp_path, gdssim, monkeypatch, [fault], timeout_s=timeout_s)
    assert facts == Facts({}, failure)


def test_a_library_that_is_none_is_told(tmp_path: Path) -> None:
    facts = ask_cufile(str(tmp_path), library="/no/libcufile.so.0", properties={})
    assert facts.seen["step"] == "load"
    assert "libcuda.so.1" in facts.seen["error"] or "libcufile" in facts.seen["error"]


def test_settings_forbid_compat_mode_and_keep_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    # The function sets variables of its process: monkeypatch puts them back.
    for name in ("CUFILE_ENV_PATH_JSON", "CUFILE_ALLOW_COMPAT_MODE", "CUFILE_FORCE_COMPAT_MODE"):
        monkeypatch.setenv(name, "true")
    _write_settings({"use_pci_p2pdma": True, "allow_compat_mode": True})
    place = os.environ["CUFILE_ENV_PATH_JSON"]
    properties = json.loads(Path(place).read_text())["properties"]
    os.close(int(place.rpartition("/")[2]))
    assert properties == {"use_pci_p2pdma": True, "allow_compat_mode": False}
    assert os.environ["CUFILE_ALLOW_COMPAT_MODE"] == "false"
