"""Verify: reads a whole checkpoint, whoever wrote it, and says whether it is what was saved."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dcp_gds.checkpoint.committed import metadata_files, read_metadata_file
from dcp_gds.checkpoint.filesession import FileSession
from dcp_gds.checkpoint.locator import Envelopes
from dcp_gds.checkpoint.promiseditem import PromisedItem, promised_items
from dcp_gds.checkpoint.region import Region, RegionKind
from dcp_gds.checkpoint.regionscan import RegionScan
from dcp_gds.checkpoint.shardcheck import ShardCheck
from dcp_gds.checkpoint.shardpath import shard_path
from dcp_gds.checkpoint.unreferenced import Unreferenced, unreferenced_in
from dcp_gds.checkpoint.verifyreport import Findings, VerifyReport
from dcp_gds.config import STAGING_BYTES_DEFAULT, STAGING_SLOT_BYTES, ReaderOptions
from dcp_gds.errors import CorruptCheckpointError, DcpGdsError, TransferError
from dcp_gds.format.extent import Extent
from dcp_gds.io.engine import EngineName
from dcp_gds.io.fileerror import file_error
from dcp_gds.io.selection import select_for_load, start_engine
from dcp_gds.io.shardfile import open_shard_file
from dcp_gds.io.staging import StagingPool
from dcp_gds.io.transferqueue import TransferQueue

__all__ = ["verify_checkpoint"]

_FORBIDDEN = (errno.EACCES, errno.EPERM)


def verify_checkpoint(
    directory: Path,
    *,
    fast: bool = False,
    allow: Iterable[str] = (),
    engine: str = "auto",
    staging_bytes_max: int = STAGING_BYTES_DEFAULT,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Verify the checkpoint in a directory; where ranks have metadata of their own, all of them.

    Parameters
    ----------
    fast
        Leave the payload out: metadata, footers, archives and all that lies between payloads are
        checked.
    allow
        Names ("module.Class") that the metadata may refer to besides DCP's own.
    engine, staging_bytes_max
        As those of `GDSReader`.
    progress
        Called with the bytes of shard files that have been dealt with, and in total.

    Returns
    -------
    VerifyReport
        Also of what is damaged or cannot be read: nothing of that is raised.

    Raises
    ------
    ConfigError, UnsupportedError
        If an option has a wrong value, or the engine that was asked for cannot run.
    """
    options = ReaderOptions(engine=engine, staging_bytes_max=staging_bytes_max)
    began = time.perf_counter()
    with contextlib.closing(
        _Verification(directory, fast=fast, options=options, progress=progress)
    ) as verification:
        verification.run(tuple(allow))
    return verification.report(seconds=time.perf_counter() - began)


class _Verification:
    """One verification at work."""

    def __init__(
        self,
        directory: Path,
        *,
        fast: bool,
        options: ReaderOptions,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._directory = directory
        self._fast = fast
        self._options = options
        self._progress = progress
        self._findings = Findings()
        self._envelopes = Envelopes()
        self._pool = StagingPool(slot_bytes=STAGING_SLOT_BYTES, bytes_max=options.staging_bytes_max)
        self._queue: TransferQueue | None = None
        self._metadata_files: list[Path] = []
        self._tokens: dict[Path, str | None] = {}
        self._files: set[str] = set()
        self._unreferenced = Unreferenced((), 0, 0)
        self._bytes_read = 0
        self._done = 0
        self._total = 0

    def run(self, allow: tuple[str, ...]) -> None:
        """Read all metadata, then all shard files."""
        try:
            self._metadata_files = metadata_files(self._directory)
        except DcpGdsError as error:
            self._findings.cannot_read(error)
            return
        checks = [check for path in self._metadata_files for check in self._plan(path, allow)]
        self._total = sum(length for _, _, length in checks)
        for path, check, length in checks:
            done = self._done + length
            self._verify_file(path, check)
            self._advance(done - self._done)
        self._tell_if_overwritten(allow)
        named = {*self._files, *(path.name for path in self._metadata_files)}
        try:
            self._unreferenced = unreferenced_in(self._directory, named=named)
        except OSError as error:
            self._findings.cannot_read(file_error(error, self._directory))

    def report(self, *, seconds: float) -> VerifyReport:
        """What came of it."""
        return VerifyReport(
            path=str(self._directory),
            fast=self._fast,
            metadata_files=tuple(path.name for path in self._metadata_files),
            tokens=tuple(self._tokens.values()),
            files=len(self._files),
            bytes_read=self._bytes_read + (0 if self._queue is None else self._queue.moved),
            unreferenced=self._unreferenced.names,
            unreferenced_count=self._unreferenced.count,
            unreferenced_bytes=self._unreferenced.bytes,
            engine="none" if self._queue is None else self._queue.engine.name,
            seconds=seconds,
            staging_bytes_peak=self._pool.peak_bytes,
            **self._findings.as_fields(),
        )

    def close(self) -> None:
        """End the engine and give the staging memory back."""
        if self._queue is not None:
            self._queue.engine.close()
        self._pool.close()

    def _plan(self, path: Path, allow: tuple[str, ...]) -> list[tuple[Path, ShardCheck, int]]:
        """Read one metadata file; a check for each shard file that it names, and its length."""
        try:
            committed = read_metadata_file(path, allow=allow)
        except DcpGdsError as error:
            self._note(error)
            return []
        self._tokens[path] = committed.token
        if committed.token is None:
            self._findings.leave_out(f"{path.name} has no checksum")
        items = promised_items(committed.metadata, path=path, report=self._findings.damage)
        self._findings.count(items=len(items), length=sum(item.payload_length for item in items))
        by_file: dict[str, list[PromisedItem]] = {}
        for item in items:
            by_file.setdefault(item.info.relative_path, []).append(item)
        trailer = committed.trailer
        records = {} if trailer is None else {file.name: file for file in trailer.shard_files}
        for name in sorted(by_file.keys() - records.keys()) if trailer is not None else ():
            self._findings.damage(
                CorruptCheckpointError(
                    f"items are in {name}, which the trailer does not name", path
                )
            )
        checks = []
        for name in sorted({*by_file, *records}):
            self._files.add(name)
            try:
                shard_file = shard_path(self._directory, name)
            except CorruptCheckpointError as error:
                self._findings.damage(error)
                continue
            check = ShardCheck(
                shard_file,
                by_file.get(name, []),
                metadata=committed.metadata,
                trailer=trailer,
                record=records.get(name),
                envelopes=self._envelopes,
                findings=self._findings,
                fast=self._fast,
            )
            checks.append((shard_file, check, _length_of(shard_file)))
        return checks

    def _tell_if_overwritten(self, allow: tuple[str, ...]) -> None:
        """Call nothing damaged that a save has replaced meanwhile, and removed.

        Stock writers leave no token: of their checkpoints it cannot be told.
        """
        for path, token in self._tokens.items():
            if not self._findings.any_damage:
                return
            with contextlib.suppress(DcpGdsError):
                now = read_metadata_file(path, allow=allow).token
                if now is not None and now != token:
                    self._findings.overwritten(
                        CorruptCheckpointError(
                            "the checkpoint was overwritten while it was being verified;"
                            " verify again",
                            path,
                        )
                    )

    def _verify_file(self, path: Path, check: ShardCheck) -> None:
        """Check one shard file."""
        try:
            regions = sorted(check.look(), key=lambda region: region.extent.offset)
            self._bytes_read += check.moved
            if regions:
                self._scan(path, regions)
        except DcpGdsError as error:
            self._note(error)

    def _scan(self, path: Path, regions: list[Region]) -> None:
        """Read regions of a file and compare their checksums."""
        if self._queue is None:
            selection = select_for_load(path, requested=self._options.engine)
            engine = start_engine(selection.engine, queue_depth=self._options.queue_depth)
            self._queue = TransferQueue(engine)
        direct = self._queue.engine.name is EngineName.DIRECT
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_shard_file(path, direct=direct))
            session = FileSession(file, _length_of(path), self._queue, self._pool)
            # In this order: nothing may be in flight when the slots are given back.
            stack.callback(session.abandon)
            stack.callback(self._queue.abandon)

            def compare(region: Region, block: Extent, expected: int, computed: int) -> None:
                if computed == expected:
                    if region.kind is RegionKind.PAYLOAD:
                        self._findings.verified += block.length
                    return
                error = CorruptCheckpointError(
                    f"{region.kind}: bytes [{block.offset}, {block.end}) have CRC-32"
                    f" {computed:08x}, expected {expected:08x}",
                    path,
                    offset=block.offset,
                    fqn=region.fqn,
                )
                self._findings.damage(error)

            scan = RegionScan(
                session, when_compared=compare, when_failed=self._note, when_done=self._advance
            )
            scan.read(regions)

    def _note(self, error: DcpGdsError) -> None:
        """Sort an error into what is damaged and what cannot be looked at."""
        lost = isinstance(error, TransferError) and error.errno not in _FORBIDDEN
        if isinstance(error, CorruptCheckpointError) or lost:
            self._findings.damage(error)
        else:
            self._findings.cannot_read(error)

    def _advance(self, length: int) -> None:
        """Report progress."""
        self._done += length
        if self._progress is not None:
            self._progress(self._done, self._total)


def _length_of(path: Path) -> int:
    """Length of a file; 0 if it is not there, which opening it will tell."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0
