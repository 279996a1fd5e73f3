"""Shortform: what gdscheck has to say about a path, for a writer's errors and its report."""

from __future__ import annotations

from dcp_gds.preflight.check import gds_checks, missing_for_gds, run_checks
from dcp_gds.preflight.facts import Facts
from dcp_gds.preflight.finding import Finding
from dcp_gds.preflight.node import Node, find_node
from dcp_gds.preflight.probe import look

__all__ = ["findings_for", "sentence"]


def findings_for(path: str, *, node: Node | None = None) -> tuple[Finding, ...]:
    """Return why GDS is not available for a directory, the likeliest cause first; empty if it is.

    The words are those of `gdscheck PATH`. No process is started, nothing is written and CUDA is
    not touched; it takes milliseconds, and 3 s at most where a file of /proc hangs. The directory
    is looked at, which blocks on a dead mount as the save itself would.

    Parameters
    ----------
    node
        The machine; this one unless a test has another.

    Raises
    ------
    OSError
        If the directory cannot be looked at.
    """
    chosen = node or find_node(ask=False)
    found = missing_for_gds(run_checks(gds_checks(path, chosen, Facts(look(path)))))
    if not chosen.has_gpu:
        # What else GDS lacks is of no interest to a node that has nothing to write by it.
        found = [finding for finding in found if finding.check == "driver"]
    return tuple(found)


def sentence(finding: Finding) -> str:
    """Return a finding as one sentence: what is there, what should be, and what to do."""
    text = finding.observed
    if finding.expected:
        text += f" (expected: {finding.expected})"
    return f"{text}; {finding.remedy}" if finding.remedy else text
