"""A check changes nothing but an unnamed file, loads no CUDA into its process, and leaves nobody.

Method: a run of its own process, under an audit hook that sees what it opens to write and starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WATCHED = """
import json, os, sys
written, started = [], []
def hook(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(os.fsdecode(arguments[0]) if not isinstance(arguments[0], int) else "")
    elif event == "subprocess.Popen":
        started.append(arguments[1][3])
    elif event in {"os.remove", "os.rename", "os.mkdir", "os.truncate", "os.chmod"}:
        written.append(event)
sys.dont_write_bytecode = True
from dcp_gds.preflight.command import main
sys.addaudithook(hook)
main(["--quiet", sys.argv[1]])
maps = open("/proc/self/maps").read()
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(json.dumps([written, started, "libcuda" in maps or "libnvidia" in maps, children]))
"""
PROBED = """
import json, os, sys
written = []
def hook(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(os.fsdecode(arguments[0]))
from dcp_gds.preflight import probe
sys.addaudithook(hook)
probe.main(sys.argv[1], write=True)
print(json.dumps(written))
"""


def run(code: str, path: Path) -> list[object]:
    """Run a program on a path, and return what it prints last."""
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_parent_writes_nothing_and_loads_no_cuda(tmp_path: Path) -> None:
    written, started, cuda, children = run(WATCHED, tmp_path)
    assert set(map(str, written)) <= {"/dev/null"}  # type: ignore[call-overload]
    # The probe of the path, and another program where it lies on an NVMe drive.
    names = {Path(str(name)).name for name in started}  # type: ignore[attr-defined]
    assert "probe.py" in names <= {"probe.py", "smartprobe.py", "nvmlprobe.py", "cufileprobe.py"}
    assert cuda is False
    assert children == []
    assert list(tmp_path.iterdir()) == []


def test_the_probe_opens_nothing_to_write_outside_the_path(tmp_path: Path) -> None:
    written = run(PROBED, tmp_path)
    assert written
    assert all(str(name).startswith(str(tmp_path)) for name in written)
