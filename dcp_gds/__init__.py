"""dcp_gds: a storage plugin for PyTorch Distributed Checkpoint that writes straight to local NVMe.

The names that need torch are imported when they are first used, so that tools which run on a node
without torch can import this package.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

from dcp_gds import errors

if TYPE_CHECKING:
    from dcp_gds.checkpoint.reader import GDSReader
    from dcp_gds.checkpoint.report import LoadReport, SaveReport
    from dcp_gds.checkpoint.writer import GDSWriter
    from dcp_gds.hostmem.watch import HostMemoryWatch

    __version__: str

__all__ = [
    "GDSReader",
    "GDSWriter",
    "HostMemoryWatch",
    "LoadReport",
    "SaveReport",
    "__version__",
    "errors",
]

_HOMES = {
    "GDSReader": "dcp_gds.checkpoint.reader",
    "GDSWriter": "dcp_gds.checkpoint.writer",
    "HostMemoryWatch": "dcp_gds.hostmem.watch",
    "LoadReport": "dcp_gds.checkpoint.report",
    "SaveReport": "dcp_gds.checkpoint.report",
}


def __dir__() -> list[str]:
    return __all__


# Type checkers must not see this one: it would make every misspelt name a valid `object`.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import what `__all__` promises when it is first asked for."""
        if name == "__version__":
            value = importlib.metadata.version("dcp-gds")
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value
