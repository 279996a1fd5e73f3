"""Check: all checks of a path, each with a time limit, and the verdict they lead to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from dcp_gds.preflight.container import check_container
from dcp_gds.preflight.cufile import check_cufile, check_cufile_probe
from dcp_gds.preflight.drives import check_drives, check_health
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding, Route, Status, Verdict
from dcp_gds.preflight.gpu import (
    check_allocator,
    check_bar1,
    check_driver,
    check_host_memory,
    check_packages,
)
from dcp_gds.preflight.host import UnreadableError
from dcp_gds.preflight.kernelpath import check_kernel_path
from dcp_gds.preflight.limits import (
    check_io_uring,
    check_memlock,
    check_memory,
    check_nofile,
    check_overcommit,
    check_swap,
    check_thp,
    check_vm,
)
from dcp_gds.preflight.node import Node
from dcp_gds.preflight.storage import check_access, check_direct, check_filesystem, check_room
from dcp_gds.preflight.topology import check_acs, check_distance, check_iommu

__all__ = ["Check", "check_path", "gds_checks", "missing_for_gds", "run_checks"]

# Files of /proc and /sys answer within milliseconds, or never.
CHECK_TIMEOUT_S = 3.0
NOT_ASKED = Facts({})
# What stands between a path and GDS when it is anything but ok.
FOR_GDS = (
    *("driver", "filesystem", "drives", "nvidia-fs", "p2pdma", "kernel-path", "iommu"),
    *("libcufile", "cufile-probe", "cufile-exit"),
)

Check = Callable[[], Iterable[Finding]]


def check_path(
    path: str,
    node: Node,
    facts: Facts,
    *,
    cufile: Facts | None = None,
    smart: Facts = NOT_ASKED,
    need_bytes: int = 0,
) -> Verdict:
    """Check a path, which is not touched: `facts` has what a probe saw of it.

    Nothing is raised for what a host's files contain: a check that cannot be made is a "skip".

    Parameters
    ----------
    cufile
        What became of an attempt to use cuFile there; None if there was none.
    smart
        The drives' health logs by controller.
    need_bytes
        Room that a checkpoint takes.
    """
    host = node.host
    # The causes that lie nearest to the path come first: of two warnings the first is the cause.
    checks: dict[str, Check] = {
        "access": partial(check_access, path, facts),
        "direct-io": partial(check_direct, path, facts),
        "space": partial(check_room, path, facts, need_bytes),
        **gds_checks(path, node, facts),
        "packages": partial(check_packages, node),
        "cufile-probe": partial(check_cufile_probe, node, path, cufile),
        "bar1": partial(check_bar1, node),
        "allocator": partial(check_allocator, node),
        "acs": partial(check_acs, node, path, facts),
        "distance": partial(check_distance, node, path, facts),
        "drive-health": partial(check_health, smart),
        "container": partial(check_container, node, path, facts),
        "cgroup-memory": partial(check_memory, host),
        "host-memory": partial(check_host_memory, node),
        "nofile": partial(check_nofile, host),
        "memlock": partial(check_memlock, host),
        "overcommit": partial(check_overcommit, host),
        "swap": partial(check_swap, host),
        "vm": partial(check_vm, host),
        "huge-pages": partial(check_thp, host),
        "io-uring": partial(check_io_uring, host, facts),
    }
    findings = run_checks(checks)
    moved = cufile is not None and bool(cufile.seen.get("wrote") and cufile.seen.get("read"))
    route, reason = _route(findings, gpu=node.has_gpu, moved=moved)
    tried = moved if route is Route.GDS else facts.seen.get("direct") is not None
    return Verdict(path, route, tried, reason, tuple(findings))


def gds_checks(path: str, node: Node, facts: Facts) -> dict[str, Check]:
    """What GDS needs besides direct I/O, as far as files tell; each takes milliseconds."""
    return {
        "filesystem": partial(check_filesystem, node.host, path, facts),
        "drives": partial(check_drives, node.host, path, facts),
        "driver": partial(check_driver, node),
        "kernel-path": partial(check_kernel_path, node),
        "iommu": partial(check_iommu, node),
        "libcufile": partial(check_cufile, node),
    }


def missing_for_gds(findings: Iterable[Finding]) -> list[Finding]:
    """Those that say why GDS is not available."""
    return [each for each in findings if each.check in FOR_GDS and each.status is not Status.OK]


def run_checks(checks: Mapping[str, Check]) -> list[Finding]:
    """Run checks side by side; return their findings, the gravest first, else in order."""
    results: dict[str, list[Finding]] = {}
    # The threads are daemons: one that hangs in a read must not keep the process from ending.
    threads = {
        name: threading.Thread(target=_one, args=(name, check, results), daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + CHECK_TIMEOUT_S
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"did not end within {CHECK_TIMEOUT_S:g} s"
    findings = [
        finding
        for name in checks
        for finding in results.get(name, [Finding(name, Status.SKIP, late)])
    ]
    return sorted(findings, key=lambda finding: list(Status).index(finding.status))


def _route(findings: list[Finding], *, gpu: bool, moved: bool) -> tuple[Route, str]:
    """The best way, and why not a better one."""
    by_check: dict[str, Finding] = {}
    for finding in findings:
        by_check.setdefault(finding.check, finding)
    for check in ("access", "space"):
        if check in by_check and by_check[check].status is Status.FAIL:
            return Route.NONE, by_check[check].observed
    if moved:
        return Route.GDS, by_check["cufile-probe"].observed
    direct = by_check.get("direct-io")
    if direct is None or direct.status is Status.FAIL:
        untried = "direct I/O was not tried, and nothing better is known to work"
        return Route.BUFFERED, direct.observed if direct else untried
    if not gpu:
        return Route.DIRECT, f"no NVIDIA driver; {direct.observed}"
    if missing := missing_for_gds(findings):
        return Route.STAGED, missing[0].observed
    return Route.GDS, "all that GDS needs is there, as far as can be seen; not tried with cuFile"


def _one(name: str, check: Check, results: dict[str, list[Finding]]) -> None:
    """Run a check; files that cannot be read, or say what they should not, make it a skip."""
    try:
        results[name] = list(check())
    except UnreadableError as error:
        results[name] = [Finding(name, Status.SKIP, str(error))]
    except (ValueError, LookupError, OSError, TypeError, AttributeError) as error:
        observed = f"what the kernel says is not understood: {error!r}"
        results[name] = [Finding(name, Status.SKIP, observed)]
