"""GDS verdicts: what probes have found, kept for all processes of a node that ask the same."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dcp_gds.io.gdsprobe import PROBE_LIMIT_S, GdsVerdict

__all__ = ["GdsVerdicts"]

# What is wrong may be mended while a job runs, so a verdict is not for ever.
VERDICT_LIFE_S = 600.0
# A probe of another process takes no longer; after that this one makes its own.
_WAIT_LIMIT_S = PROBE_LIMIT_S + 10.0
_WAIT_STEP_S = 0.05
_VARIABLES = ("KVIKIO_", "CUFILE_", "CUDA_VISIBLE_DEVICES", "LD_")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class GdsVerdicts:
    """Asks a probe once for each directory and node, however many ranks want to know.

    Verdicts lie in files of this user only. Where such a place cannot be had, each process asks for
    itself.

    Parameters
    ----------
    probe
        Finds the verdict on a path: a directory to save to, or a file to load.
    environment
        Instead of this process's: verdicts hold for the settings that they were found with.
    place
        Where the files are; by default a directory beside other temporary files.
    """

    def __init__(
        self,
        probe: Callable[[Path], GdsVerdict],
        *,
        environment: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> None:
        self._probe = probe
        self._environment = os.environ if environment is None else environment
        default = Path(tempfile.gettempdir()) / f"dcp_gds-{os.getuid()}"
        self._place = default if place is None else place
        self._known: dict[str, tuple[float, GdsVerdict]] = {}

    def __call__(self, path: Path) -> GdsVerdict:
        """Return a verdict that is no older than ten minutes; raises what the probe raises."""
        key = self._key(path)
        found_at, verdict = self._known.get(key, (0.0, None))
        if verdict is not None and time.monotonic() - found_at < VERDICT_LIFE_S:
            return verdict
        with self._locked(key) as file:
            verdict = _read(file) if file is not None else None
            if verdict is None:
                verdict = self._probe(path)
                if file is not None:
                    _write(file, verdict)
        self._known[key] = time.monotonic(), verdict
        return verdict

    def _key(self, path: Path) -> str:
        """Names the directory and the settings; a file stands for its directory, and for reads."""
        about = path.stat()
        reads = not stat.S_ISDIR(about.st_mode)
        if reads:
            about = path.parent.stat()
        settings = sorted(
            item for item in self._environment.items() if item[0].startswith(_VARIABLES)
        )
        facts = (_BOOT.read_text(encoding="ascii"), about.st_dev, about.st_ino, reads, settings)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[Path | None]:
        """The verdict's file, which no other process touches meanwhile; None if there is none."""
        try:
            self._place.mkdir(mode=0o700, exist_ok=True)
            about = self._place.lstat()
            # Others could put verdicts there.
            ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
            lock = None if not ours or about.st_mode & 0o022 else self._open_lock(key)
        except OSError:
            lock = None
        if lock is None:
            yield None
            return
        try:
            yield self._place / f"{key}.json" if _lock(lock) else None
        finally:
            os.close(lock)

    def _open_lock(self, key: str) -> int:
        """A file whose lock stands for the verdict's."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._place / f"{key}.lock", flags, 0o600)


def _lock(fd: int) -> bool:
    """Wait for the lock; False if another process holds it for longer than a probe takes."""
    deadline = time.monotonic() + _WAIT_LIMIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_WAIT_STEP_S)
        else:
            return True


def _read(file: Path) -> GdsVerdict | None:
    """The verdict in a file; None if there is none that counts."""
    try:
        if not 0 <= time.time() - file.stat().st_mtime < VERDICT_LIFE_S:
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        return GdsVerdict(bool(found["works"]), str(found["reason"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(file: Path, verdict: GdsVerdict) -> None:
    """Keep a verdict; where there is no room for it the next process asks for itself."""
    with contextlib.suppress(OSError):
        file.write_text(json.dumps(dataclasses.asdict(verdict)), encoding="utf-8")
