"""The probe says whether cuFile works on a path, whatever becomes of the process that tries it.

Method: the child runs the real kvikio on the simulated driver, which fails, hangs and aborts as
asked; the process that asks, which is pytest's, must be as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dcp_gds.errors import TransferError
from dcp_gds.io import gdsprobe
from dcp_gds.io.gdsprobe import GdsVerdict, probe_directory, probe_file
from dcp_gds.preflight.cufilejson import parse_settings, without_compat
from tests.gdssim.build import Libraries
from tests.gdssim.child import Machine
from tests.gdssim.fault import EVERY, Action, Fault

MIB = 1 << 20
# What a hang is told by; a child takes a second where it does not hang.
LIMIT_S = 60.0
HANG_LIMIT_S = 4.0


def verdict(
    directory: Path, machine: Machine, *, limit_s: float = LIMIT_S, **environment: str
) -> GdsVerdict:
    """The probe's verdict, which has left nothing behind and stdin as it was."""
    before = set(directory.iterdir()), os.fstat(0)
    found = probe_directory(
        directory, ordinal=0, environment=machine.variables() | environment, limit_s=limit_s
    )
    assert (set(directory.iterdir()), os.fstat(0)) == before
    maps = Path("/proc/self/maps").read_text()
    assert [name for name in ("libcuda.so", "libcufile.so", "libkvikio") if name in maps] == []
    verb = "works" if found.works else "does not work"
    assert found.reason.startswith(f"GPUDirect Storage {verb} on {directory}: ")
    return found


def test_it_works_where_cufile_moves_the_bytes(gdssim: Libraries, tmp_path: Path) -> None:
    found = verdict(tmp_path, Machine(libraries=gdssim))
    assert found.works
    seen = f"{2 * MIB} bytes went between GPU 0 and the drive by cuFile, unchanged"
    assert found.reason.endswith(seen)


def test_a_load_is_tried_by_reading(gdssim: Libraries, tmp_path: Path) -> None:
    variables = Machine(libraries=gdssim).variables()
    for length, moved in ((10_000, 10_000), (3 * MIB, MIB)):
        path = tmp_path / "file"
        path.write_bytes(os.urandom(length))
        path.chmod(0o400)
        found = probe_file(path, ordinal=0, environment=variables, limit_s=LIMIT_S)
        assert found.works
        assert f"works on {path}: {moved} bytes went" in found.reason
        path.unlink()
    path.touch()
    found = probe_file(path, ordinal=0, environment=variables, limit_s=LIMIT_S)
    assert (found.works, found.reason.endswith("there is nothing to try to read")) == (False, True)


@pytest.mark.parametrize(
    ("code", "text", "remedy"),
    [
        (5008, "GPUDirect Storage not supported on current file", "ext4 or xfs on local NVMe"),
        (5016, "access beyond maximum pinned size", "raise max_device_pinned_mem_size_kb"),
        (5027, "file descriptor is not registered", "bind-mount a directory of the NVMe drive"),
        (5030, "internal error", "cuFile finds no block device behind the file"),
    ],
)
def test_a_refused_registration_names_what_to_mend(
    gdssim: Libraries, tmp_path: Path, code: int, text: str, remedy: str
) -> None:
    fault = Fault(function="cuFileHandleRegister", result=code)
    found = verdict(tmp_path, Machine(libraries=gdssim, faults=[fault]))
    assert not found.works
    assert f": cuFile: {text}; " in found.reason
    assert remedy in found.reason


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        (Fault(function="cuFileDriverOpen", action=Action.HOLD), "cuFile's driver open"),
        (Fault(function="cuFileWrite", action=Action.HOLD), "a transfer"),
    ],
)
def test_a_hang_is_ended(gdssim: Libraries, tmp_path: Path, fault: Fault, stage: str) -> None:
    machine = Machine(libraries=gdssim, faults=[fault])
    found = verdict(tmp_path, machine, limit_s=HANG_LIMIT_S)
    assert not found.works
    assert f": {stage} did not end within 4 s: run `gdscheck PATH`" in found.reason


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        ("cuInit", "the CUDA driver"),
        ("cuFileDriverOpen", "cuFile's driver open"),
        ("cuFileBufRegister", "the registration of GPU memory"),
        ("cuFileHandleRegister", "the registration of a file"),
        ("cuFileRead", "a transfer"),
    ],
)
def test_an_abort_ends_the_child_only(
    gdssim: Libraries, tmp_path: Path, function: str, stage: str
) -> None:
    fault = Fault(function=function, action=Action.ABORT)
    found = verdict(tmp_path, Machine(libraries=gdssim, faults=[fault]))
    assert not found.works
    assert f": {stage} ended the process by SIGABRT: run `gdscheck PATH`" in found.reason


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            Fault(function="cuFileDriverOpen", result=5001, count=EVERY),
            "nvidia-fs driver is not loaded",
        ),
        (Fault(function="cuInit", result=100), "cuInit of libcuda.so.1 failed: CUDA error 100"),
        (Fault(function="cuDevicePrimaryCtxRetain", result=2), "GPU 0 cannot be used: "),
        (Fault(function="cuMemAlloc_v2", result=2), "cuMemAlloc_v2: CUDA error 2"),
        (Fault(function="cuFileBufRegister", result=5036), "the GPU's BAR1 memory is full"),
        (Fault(function="cuFileWrite", error=28), "No space left on device"),
        (Fault(function="cuFileWrite", result=4096), "4096 of 1048576 bytes were written"),
        (Fault(function="cuFileRead", result=-5010), "nvidia-fs driver ioctl error"),
        (Fault(function="cuFileRead", result=512), "512 of 1048576 bytes were read"),
    ],
)
def test_an_error_is_the_reason(gdssim: Libraries, tmp_path: Path, fault: Fault, text: str) -> None:
    found = verdict(tmp_path, Machine(libraries=gdssim, faults=[fault]))
    assert not found.works
    assert text in found.reason
    assert "; " in found.reason or "were" in found.reason


def test_compat_modes_are_named(gdssim: Libraries, tmp_path: Path) -> None:
    machine = Machine(libraries=gdssim)
    found = verdict(tmp_path, machine, KVIKIO_COMPAT_MODE="ON")
    assert (found.works, "compat mode is ON: unset KVIKIO_COMPAT_MODE" in found.reason) == (
        False,
        True,
    )
    found = verdict(tmp_path, machine, CUFILE_FORCE_COMPAT_MODE="true")
    assert (found.works, "forced by CUFILE_FORCE_COMPAT_MODE" in found.reason) == (False, True)


def test_auto_without_udev_is_named(gdssim: Libraries, tmp_path: Path) -> None:
    found = verdict(tmp_path, Machine(libraries=gdssim), KVIKIO_COMPAT_MODE="AUTO")
    if os.access("/run/udev", os.R_OK):
        assert found.works
    else:
        assert not found.works
        assert "/run/udev cannot be read" in found.reason
        assert "add `-v /run/udev:/run/udev:ro`" in found.reason


def test_missing_libraries_are_named(gdssim: Libraries, tmp_path: Path) -> None:
    machine = Machine(libraries=gdssim)
    found = verdict(tmp_path, machine, LD_PRELOAD="")
    assert (found.works, "libcuda.so.1 cannot be loaded" in found.reason) == (False, True)
    found = verdict(tmp_path, machine, LD_PRELOAD=str(gdssim.cuda))
    assert (found.works, "install libcufile" in found.reason) == (False, True)


def test_a_missing_kvikio_is_named(
    gdssim: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kvikio.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'kvikio'\", name='kvikio')"
    )
    monkeypatch.syspath_prepend(str(elsewhere))
    found = verdict(tmp_path, Machine(libraries=gdssim))
    assert not found.works
    assert "kvikio is not installed: pip install 'dcp-gds[cu12]'" in found.reason


def test_the_settings_are_ours_but_for_the_compat_mode(tmp_path: Path) -> None:
    text = '{\n// comment\n"properties": {"use_pci_p2pdma": true, "allow_compat_mode": true}, //\n'
    text += '"logging": {"level": "INFO"}}'
    settings = json.loads(without_compat(parse_settings(text), log_directory="/logs"))
    assert settings == {
        "properties": {"use_pci_p2pdma": True, "allow_compat_mode": False},
        "logging": {"level": "INFO", "dir": "/logs"},
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read: "),
        ("[]", "cannot be read: it is no object; mend it"),
        ('{"properties": 1}', "cannot be read: properties is no object; mend it"),
        ('{"properties": {"force_compat_mode": true}}', "forced by force_compat_mode in "),
    ],
)
def test_settings_that_rule_it_out_are_named(
    gdssim: Libraries, tmp_path: Path, text: str, reason: str
) -> None:
    settings = tmp_path / "cufile.json"
    settings.write_text(text)
    found = verdict(tmp_path, Machine(libraries=gdssim), CUFILE_ENV_PATH_JSON=str(settings))
    assert not found.works
    assert reason in found.reason
    assert str(settings) in found.reason


def test_a_child_that_cannot_be_started_is_a_finding(
    gdssim: Libraries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    found = verdict(tmp_path, Machine(libraries=gdssim))
    assert not found.works
    assert "could not be started: [Errno 11]" in found.reason


def test_a_directory_that_is_not_there_keeps_its_errno(tmp_path: Path) -> None:
    with pytest.raises(TransferError) as caught:
        probe_directory(tmp_path / "missing", ordinal=0)
    assert caught.value.errno == 2


def test_a_child_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Stuck:
        pid = 2**22 + 1  # No process has it: that is the largest number there can be.

        def wait(self, limit_s: float) -> int:
            waits.append(limit_s)
            raise subprocess.TimeoutExpired("probe", limit_s)

    assert gdsprobe._wait(Stuck(), 7.0) is None  # type: ignore[arg-type]
    assert waits == [7.0, 5.0]
