"""A sample holds what a host tells, whatever its kernel, and leaves out what it does not.

Method: trees of recorded files in the place of /proc and /sys, and the host that the test runs on.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from dcp_gds.hostmem.cgroup import find_memory_cgroup
from dcp_gds.hostmem.procfile import FILE_BYTES_MAX, read_file
from dcp_gds.hostmem.sample import Sampler
from tests.hostmem.recorded import KERNELS, proc_tree, recording

V1_MOUNT = "32 24 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def with_cgroup(root: Path, *, mounts: str, membership: str) -> Path:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(membership)
    return root


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel(kernel: str, tmp_path: Path) -> None:
    sample = Sampler(root=proc_tree(tmp_path, kernel)).sample()
    for name in ("pgscan_kswapd", "pgscan_direct", "pswpin", "pswpout", "allocstall"):
        assert sample.counters[name] == 0, name
    assert "workingset_refault" in sample.counters
    assert sample.gauges["dirty_background_bytes"] > sample.gauges["dirty_bytes"]
    assert ("pinned_bytes" in sample.gauges) == (kernel not in {"4.18", "5.4"})
    assert ("psi_io_some_us" in sample.counters) == (kernel == "6.18")


def test_the_numbers_of_a_recording(tmp_path: Path) -> None:
    root = proc_tree(tmp_path, "4.18", drives=("sda", "sr0", "loop0", "dm-0"))
    sample = Sampler(root=root).sample()
    assert sample.gauges["dirty_bytes"] == 4340 * mmap.PAGESIZE
    assert sample.gauges["available_bytes"] == 1950080 << 10
    assert sample.gauges["swap_used_bytes"] == 0
    # Of the whole drive alone: its partitions' are in it.
    assert sample.counters["drive_written_bytes"] == 2253152 * 512


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    sample = Sampler(root=tmp_path).sample()
    assert sample.counters == {}
    assert sample.gauges == {}


def test_memory_of_processes_is_added_up(tmp_path: Path) -> None:
    for pid in (10, 11):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text("Name:\tx y\nVmLck:\t 8 kB\nVmRSS:\t 100 kB\n")
    sample = Sampler((10, 11, 12), root=tmp_path).sample()
    assert sample.gauges == {"locked_bytes": 16 << 10, "rss_bytes": 200 << 10}


def test_cgroup_v1(tmp_path: Path) -> None:
    root = with_cgroup(tmp_path, mounts=V1_MOUNT, membership="4:cpu:/\n8:memory:/job\n0::/\n")
    directory = root / "sys/fs/cgroup/memory/job"
    directory.mkdir(parents=True)
    (directory / "memory.stat").write_bytes(recording("6.18", "memory.stat"))
    (directory / "memory.usage_in_bytes").write_text("4096\n")
    (directory / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
    gauges = Sampler(root=root).sample().gauges
    assert gauges["cgroup_bytes"] == 4096
    assert gauges["cgroup_swap_bytes"] == 0
    assert "cgroup_limit_bytes" not in gauges
    (directory / "memory.limit_in_bytes").write_text("8192\n")
    assert Sampler(root=root).sample().gauges["cgroup_limit_bytes"] == 8192


def test_cgroup_v2(tmp_path: Path) -> None:
    root = with_cgroup(tmp_path, mounts=V2_MOUNT, membership="0::/pod/job\n")
    directory = root / "sys/fs/cgroup/pod/job"
    directory.mkdir(parents=True)
    (directory / "memory.stat").write_bytes(recording("6.19", "memory.stat"))
    (directory / "memory.current").write_text("123\n")
    (directory / "memory.max").write_text("max\n")
    (directory / "memory.swap.current").write_text("77\n")
    sample = Sampler(root=root).sample()
    assert sample.counters["cgroup_pgscan"] == 1629223
    assert sample.gauges["cgroup_dirty_bytes"] == 372736
    assert sample.gauges["cgroup_swap_bytes"] == 77
    assert "cgroup_limit_bytes" not in sample.gauges


def test_a_container_that_sees_its_own_part_of_the_tree(tmp_path: Path) -> None:
    mounts = V2_MOUNT.replace("0:26 / ", "0:26 /kube/pod ")
    root = with_cgroup(tmp_path, mounts=mounts, membership="0::/kube/pod/inner\n")
    directory = root / "sys/fs/cgroup/inner"
    directory.mkdir(parents=True)
    (directory / "memory.stat").write_text("anon 1\n")
    found = find_memory_cgroup("self", root=root)
    assert found is not None
    assert found.directory == directory


@pytest.mark.parametrize(
    ("mounts", "membership"),
    [
        ("", "0::/\n"),
        (V2_MOUNT, ""),
        (V2_MOUNT, "0::/gone\n"),
        (V1_MOUNT.replace("rw,memory", "rw,cpu"), "8:memory:/\n"),
        ("garbage - cgroup2\n\xff", "8:memory:/\n"),
    ],
)
def test_no_cgroup_to_be_seen(mounts: str, membership: str, tmp_path: Path) -> None:
    with_cgroup(tmp_path, mounts=mounts, membership=membership)
    assert find_memory_cgroup("self", root=tmp_path) is None


def test_a_mount_point_with_a_blank(tmp_path: Path) -> None:
    mounts = V2_MOUNT.replace("/sys/fs/cgroup", "/a\\040b")
    with_cgroup(tmp_path, mounts=mounts, membership="0::/\n")
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/memory.stat").touch()
    found = find_memory_cgroup("self", root=tmp_path)
    assert found is not None
    assert found.directory.resolve() == tmp_path / "a b"


def test_this_host() -> None:
    sample = Sampler((os.getpid(),)).sample()
    assert sample.gauges["total_bytes"] > sample.gauges["available_bytes"] > 0
    assert sample.gauges["rss_bytes"] > 1 << 20
    assert "pgscan_kswapd" in sample.counters


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_file(tmp_path) == b""
    assert read_file(tmp_path / "none") == b""
    large = tmp_path / "large"
    large.write_bytes(bytes(FILE_BYTES_MAX + (1 << 20)))
    assert FILE_BYTES_MAX <= len(read_file(large)) < FILE_BYTES_MAX + (1 << 20)


def test_no_file_stays_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    samplers = [Sampler() for _ in range(5)]
    for sampler in samplers:
        sampler.sample()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
