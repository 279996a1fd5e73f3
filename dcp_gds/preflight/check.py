"""Check: all checks of a path, each with a time limit, and the verdict they lead to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from dcp_gds.preflight.finding import Finding, Route, Status, Verdict
from dcp_gds.preflight.gpu import (
    check_allocator,
    check_cufile,
    check_driver,
    check_iommu,
    check_kernel_path,
    has_gpu,
)
from dcp_gds.preflight.host import Host, UnreadableError
from dcp_gds.preflight.limits import check_memory, check_nofile, check_swap, check_vm
from dcp_gds.preflight.pathfacts import PathFacts
from dcp_gds.preflight.storage import (
    check_access,
    check_direct,
    check_drives,
    check_filesystem,
    check_room,
)

__all__ = ["check_path"]

# Files of /proc and /sys answer within milliseconds, or never.
CHECK_TIMEOUT_S = 3.0
# What stands between a path and GDS when it is anything but ok.
FOR_GDS = ("driver", "filesystem", "drives", "nvidia-fs", "p2pdma", "iommu", "libcufile")

Check = Callable[[], Iterable[Finding]]


def check_path(
    path: str, host: Host, facts: PathFacts, *, environment: Mapping[str, str], need_bytes: int = 0
) -> Verdict:
    """Check a path, which is not touched: `facts` has what a probe saw of it.

    Nothing is raised for what a host's files contain: a check that cannot be made is a "skip".
    """
    # The causes that lie nearest to the path come first: of two warnings the first is the cause.
    checks: dict[str, Check] = {
        "access": partial(check_access, path, facts),
        "direct-io": partial(check_direct, path, facts),
        "space": partial(check_room, path, facts, need_bytes),
        "filesystem": partial(check_filesystem, host, path, facts),
        "drives": partial(check_drives, host, path, facts),
        "driver": partial(check_driver, host),
        "kernel-path": partial(check_kernel_path, host, environment),
        "iommu": partial(check_iommu, host),
        "libcufile": partial(check_cufile, host, environment),
        "allocator": partial(check_allocator, host, environment),
        "cgroup-memory": partial(check_memory, host),
        "nofile": partial(check_nofile, host),
        "swap": partial(check_swap, host),
        "vm": partial(check_vm, host),
    }
    findings = _run(checks)
    rank = list(Status).index
    findings.sort(key=lambda finding: rank(finding.status))
    route, reason = _route(findings, gpu=has_gpu(host))
    # The probe moves host memory: that GDS works is for cuFile to show.
    tried = route is not Route.GDS and facts.seen.get("direct") is not None
    return Verdict(path, route, tried, reason, tuple(findings))


def _route(findings: list[Finding], *, gpu: bool) -> tuple[Route, str]:
    """The best way, and why not a better one."""
    by_check: dict[str, Finding] = {}
    for finding in findings:
        by_check.setdefault(finding.check, finding)
    for check in ("access", "space"):
        if check in by_check and by_check[check].status is Status.FAIL:
            return Route.NONE, by_check[check].observed
    direct = by_check.get("direct-io")
    if direct is None:
        return Route.BUFFERED, "direct I/O was not tried, and nothing better is known to work"
    if direct.status is Status.FAIL:
        return Route.BUFFERED, direct.observed
    if not gpu:
        return Route.DIRECT, f"no NVIDIA driver; {direct.observed}"
    missing = [by_check[check] for check in FOR_GDS if check in by_check]
    missing = [finding for finding in missing if finding.status is not Status.OK]
    if missing:
        return Route.STAGED, missing[0].observed
    return Route.GDS, "all that GDS needs is there, as far as can be seen; not tried with cuFile"


def _run(checks: Mapping[str, Check]) -> list[Finding]:
    """Run checks side by side and return their findings in order."""
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
    return [
        finding
        for name in checks
        for finding in results.get(name, [Finding(name, Status.SKIP, late)])
    ]


def _one(name: str, check: Check, results: dict[str, list[Finding]]) -> None:
    """Run a check; files that cannot be read, or say what they should not, make it a skip."""
    try:
        results[name] = list(check())
    except UnreadableError as error:
        results[name] = [Finding(name, Status.SKIP, str(error))]
    except (ValueError, LookupError, OSError) as error:
        observed = f"what the kernel says is not understood: {error!r}"
        results[name] = [Finding(name, Status.SKIP, observed)]
