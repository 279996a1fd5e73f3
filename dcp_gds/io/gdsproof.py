"""GDS proof: by which path the bytes of a GDS engine went, judged by what kvikio has counted."""

from __future__ import annotations

from dcp_gds.io.gds import GdsCounts

__all__ = ["bytes_by_path"]


def bytes_by_path(counts: GdsCounts, *, moved: int) -> dict[str, int]:
    """Return the bytes of each path: "gds", "gds-compat", or all of them "unattributed".

    "gds" means that cuFile moved them where a probe had seen it do so with its own compat mode
    forbidden; "gds-compat" that kvikio went through host memory. kvikio counts the whole process:
    when somebody else has used it meanwhile, nobody knows whose bytes were which.

    Parameters
    ----------
    counts
        What kvikio counted while the engine was at work.
    moved
        Bytes of the engine's own completions.
    """
    if counts.cufile + counts.posix != moved:
        return {"unattributed": moved}
    by_path = {"gds": counts.cufile, "gds-compat": counts.posix}
    return {path: length for path, length in by_path.items() if length}
