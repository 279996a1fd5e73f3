"""Survey: the verdicts on paths of this machine, found side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dcp_gds.preflight.check import check_path
from dcp_gds.preflight.cufile import find_libraries, settings
from dcp_gds.preflight.drives import controllers_below
from dcp_gds.preflight.facts import Facts, ask_cufile, ask_smart, probe_path
from dcp_gds.preflight.finding import Verdict
from dcp_gds.preflight.host import UnreadableError
from dcp_gds.preflight.node import DRIVER, Node, find_node

__all__ = ["verdicts_on"]

# Each of them has a process of its own. So many dead mounts end within the time of one.
AT_ONCE_MAX = 32


def verdicts_on(paths: Sequence[str], *, write: bool, need_bytes: int) -> list[Verdict]:
    """Return the verdict on each path, in order.

    Paths are looked at side by side, so that dead mounts take no longer than one; figures of speed
    are then those of drives that several probes write to.
    """
    node = find_node()

    def verdict_on(path: str) -> Verdict:
        facts = probe_path(path, write=write)
        smart = ask_smart(names) if (names := controllers_below(node.host, path, facts)) else NONE
        cufile = _try_cufile(path, node, facts) if write else None
        return check_path(path, node, facts, cufile=cufile, smart=smart, need_bytes=need_bytes)

    # No thread waits without an end: each child and each check has its time limit.
    with ThreadPoolExecutor(min(len(paths), AT_ONCE_MAX)) as pool:
        return list(pool.map(verdict_on, paths))


NONE = Facts({})


def _try_cufile(path: str, node: Node, facts: Facts) -> Facts | None:
    """Move GPU memory by cuFile, if there is a driver, a library and direct I/O."""
    if not facts.seen.get("direct") or not node.host.exists(DRIVER):
        return None
    libraries = find_libraries(node)
    try:
        properties = settings(node)
    except UnreadableError:
        properties = {}
    if not libraries:
        return None
    return ask_cufile(path, library=f"/{libraries[0]}", properties=properties)
