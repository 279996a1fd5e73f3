"""The ceiling is the arithmetic of the host's memory, its cgroups and its ranks, to the byte.

Method: trees of /proc and /sys with cgroups of version 1, version 2, nested and in a container; and
as root a real cgroup with a process in it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.budget import FRACTION_VARIABLE, Budget, read_budget
from tests.filesystems import missing

GIB = 1 << 30
V1_UNLIMITED = (1 << 63) - 4096


def host(root: Path, *, total: int = 64 * GIB, available: int = 60 * GIB, locked: int = 0) -> Path:
    """A tree of /proc without cgroups."""
    own = root / "proc/self"
    own.mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\nHugePages_Total: 0\n"
    )
    (own / "status").write_text(f"Name:\tpython\nVmLck:\t{locked >> 10} kB\nVmPin:\t0 kB\n")
    (own / "cgroup").write_text("")
    (own / "mountinfo").write_text("24 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    return root


def v1(root: Path, path: str, *, limits: dict[str, int], mount_root: str = "/") -> None:
    """A memory cgroup of version 1; `limits` by path below the mount."""
    with (root / "proc/self/cgroup").open("a") as file:
        file.write(f"4:cpu,cpuacct:/elsewhere\n5:memory:{path}\n")
    with (root / "proc/self/mountinfo").open("a") as file:
        file.write(
            f"31 24 0:28 {mount_root} /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
            "32 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        )
    for below, limit in limits.items():
        level = root / "sys/fs/cgroup/memory" / below
        level.mkdir(parents=True, exist_ok=True)
        (level / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (level / "memory.usage_in_bytes").write_text(f"{GIB}\n")
        (level / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 4096\n")


def v2(root: Path, path: str, *, limits: dict[str, str]) -> None:
    """A cgroup of version 2; `limits` by path below the mount."""
    with (root / "proc/self/cgroup").open("a") as file:
        file.write(f"0::{path}\n")
    with (root / "proc/self/mountinfo").open("a") as file:
        file.write("41 24 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
    for below, limit in limits.items():
        level = root / "sys/fs/cgroup/unified" / below
        level.mkdir(parents=True, exist_ok=True)
        (level / "memory.max").write_text(f"{limit}\n")
        (level / "memory.current").write_text(f"{2 * GIB}\n")
        (level / "memory.stat").write_text("anon 1\ninactive_file 8192\n")


def budget(
    root: Path, *, fraction: float | None = None, local_ranks: int | None = None, pinned: int = 0
) -> Budget:
    return read_budget(
        fraction=fraction, local_ranks=local_ranks, pinned=pinned, root=root, environ={}
    )


def test_without_cgroups(tmp_path: Path) -> None:
    found = budget(host(tmp_path))
    assert found.cgroup is None
    assert found.ceiling == int(64 * GIB * 0.4)


def test_ranks_share_and_what_is_pinned_counts(tmp_path: Path) -> None:
    found = budget(host(tmp_path, locked=3 * 4096), local_ranks=8, pinned=5)
    assert found.ceiling == int(64 * GIB * 0.4) // 8 - 3 * 4096 - 5


def test_what_is_free_bounds_the_ceiling(tmp_path: Path) -> None:
    found = budget(host(tmp_path, available=3 * GIB), local_ranks=2)
    assert found.ceiling == 3 * GIB // 2


def test_no_ceiling_is_below_nothing(tmp_path: Path) -> None:
    assert budget(host(tmp_path), pinned=64 * GIB).ceiling == 0


def test_v1_the_tightest_level_counts(tmp_path: Path) -> None:
    v1(
        host(tmp_path),
        "/pod/job",
        limits={"": V1_UNLIMITED, "pod": 10 * GIB, "pod/job": 20 * GIB},
    )
    found = budget(tmp_path)
    assert found.cgroup is not None
    assert found.cgroup.path.endswith("/memory/pod/memory.limit_in_bytes")
    assert found.cgroup.free == 9 * GIB + 4096
    assert found.ceiling == int(10 * GIB * 0.4)


def test_v1_in_a_container_whose_mount_shows_its_own_part(tmp_path: Path) -> None:
    v1(host(tmp_path), "/docker/1234", mount_root="/docker/1234", limits={"": 8 * GIB})
    assert budget(tmp_path).host == 8 * GIB


def test_v1_in_a_container_that_knows_only_a_foreign_path(tmp_path: Path) -> None:
    v1(host(tmp_path), "/kubepods/1", mount_root="/docker/1234", limits={"": 8 * GIB})
    assert budget(tmp_path).host == 8 * GIB


def test_v2_nested(tmp_path: Path) -> None:
    limits = {"": "max", "a": str(12 * GIB), "a/b": "max", "a/b/c": str(16 * GIB)}
    v2(host(tmp_path), "/a/b/c", limits=limits)
    found = budget(tmp_path, fraction=0.5)
    assert found.cgroup is not None
    assert (found.cgroup.limit, found.cgroup.free) == (12 * GIB, 10 * GIB + 8192)
    assert found.ceiling == 6 * GIB


def test_both_versions_at_once(tmp_path: Path) -> None:
    v1(host(tmp_path), "/x", limits={"x": 6 * GIB})
    v2(tmp_path, "/", limits={"": "max"})
    assert budget(tmp_path).host == 6 * GIB


def test_a_limit_above_the_host_is_none(tmp_path: Path) -> None:
    v2(host(tmp_path), "/a", limits={"a": str(999 * GIB)})
    assert budget(tmp_path).host == 64 * GIB


def test_the_environment_gives_the_defaults(tmp_path: Path) -> None:
    environ = {FRACTION_VARIABLE: "0.25", "LOCAL_WORLD_SIZE": "4"}
    found = read_budget(root=host(tmp_path), environ=environ)
    assert found.ceiling == 4 * GIB
    assert read_budget(root=tmp_path, environ=environ, fraction=0.5, local_ranks=1).fraction == 0.5


@pytest.mark.parametrize("value", ["0", "1.5", "-1", "nan", "much"])
def test_a_wrong_environment_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=FRACTION_VARIABLE):
        read_budget(root=host(tmp_path), environ={FRACTION_VARIABLE: value})


@pytest.mark.parametrize("value", [0, 1.01, True, "0.4"])
def test_a_wrong_fraction_is_refused(value: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="host_memory_fraction"):
        budget(host(tmp_path), fraction=value)


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_wrong_number_of_ranks_is_refused(ranks: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE"):
        budget(host(tmp_path), local_ranks=ranks)


def test_asking_for_more_spells_the_arithmetic_out(tmp_path: Path) -> None:
    v1(host(tmp_path, locked=4096), "/x", limits={"x": 10 * GIB})
    found = budget(tmp_path, local_ranks=2)
    assert found.check(found.ceiling, name="it") == found.ceiling
    with pytest.raises(ConfigError) as caught:
        found.check(found.ceiling + 1, name="it")
    numbers = [found.ceiling + 1, 64 * GIB, 10 * GIB, found.share, 4096, 60 * GIB, found.ceiling]
    assert all(str(number) in str(caught.value) for number in numbers)
    assert found.describe() in str(caught.value)


def test_locked_memory_counts_against_its_own_limit(tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = budget(host(tmp_path))
    assert found.memlock == (None if soft == resource.RLIM_INFINITY else soft)
    limited = Budget(0.4, 1, 64 * GIB, 60 * GIB, None, pinned=4096, memlock=8 << 20)
    assert limited.check(9 << 20, name="it") == 9 << 20
    with pytest.raises(ConfigError, match=str((8 << 20) - 4096)):
        limited.check(9 << 20, name="it", locked=True)


def test_this_machine() -> None:
    found = read_budget()
    assert 0 < found.ceiling <= found.total
    assert str(found.ceiling) in found.describe()


def test_a_real_cgroup() -> None:
    top = Path("/sys/fs/cgroup/memory")
    if os.geteuid() != 0 or not (top / "memory.limit_in_bytes").exists():
        missing("root and cgroups of version 1")
    outer = top / f"dcp-gds-{uuid.uuid4().hex}"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    try:
        (outer / "memory.limit_in_bytes").write_text(str(GIB))
        (inner / "memory.limit_in_bytes").write_text(str(2 * GIB))
        code = (
            "import os; open(os.sys.argv[1], 'w').write(str(os.getpid()));"
            "from dcp_gds.hostmem.budget import read_budget; print(read_budget().ceiling)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, inner / "cgroup.procs"],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        inner.rmdir()
        outer.rmdir()
    assert int(done.stdout) == int(GIB * 0.4)
