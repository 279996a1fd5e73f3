"""Restricted: a directory of which this process has no more rights than its mode gives.

For a test that runs as root, which may do everything, root is given up meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["restricted"]

NOBODY = 65534


@contextmanager
def restricted(mode: int) -> Iterator[Path]:
    """An empty directory with the permissions `mode`; it is gone afterwards."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(mode)
        user = os.geteuid()
        if user == 0:
            os.seteuid(NOBODY)
        try:
            yield path
        finally:
            os.seteuid(user)
            path.chmod(0o755)
