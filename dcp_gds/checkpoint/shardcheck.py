"""Shard check: whether a shard file is what the metadata say, down to its last byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch.distributed.checkpoint.metadata import Metadata

from dcp_gds.checkpoint.archivecheck import check_stored, check_with_footer, entry_regions
from dcp_gds.checkpoint.archiveentries import archive_entries
from dcp_gds.checkpoint.loaditem import LoadItem
from dcp_gds.checkpoint.locator import Envelopes, Locator
from dcp_gds.checkpoint.promiseditem import PromisedItem, check_apart
from dcp_gds.checkpoint.region import Region, RegionKind, regions_of_footer
from dcp_gds.checkpoint.sidereader import SideReader
from dcp_gds.checkpoint.verifyreport import Findings
from dcp_gds.errors import CorruptCheckpointError
from dcp_gds.format.footer import Footer, footer_length
from dcp_gds.format.metadata import ShardFileRecord, Trailer

__all__ = ["ShardCheck"]


class ShardCheck:
    """Looks at everything in a shard file but its payload, and says what is to be summed.

    Parameters
    ----------
    path, items
        The file, and the items that the metadata place in it.
    trailer, record
        The metadata's, and its record of the file; None of a stock checkpoint.
    fast
        Whether payload is left out.
    """

    def __init__(
        self,
        path: Path,
        items: Sequence[PromisedItem],
        *,
        metadata: Metadata,
        trailer: Trailer | None,
        record: ShardFileRecord | None,
        envelopes: Envelopes,
        findings: Findings,
        fast: bool,
    ) -> None:
        self._path = path
        self._items = items
        self._metadata = metadata
        self._trailer = trailer
        self._record = record
        self._envelopes = envelopes
        self._findings = findings
        self._fast = fast
        self.moved = 0

    def look(self) -> list[Region]:
        """Check the file's records and archives; return the regions whose bytes are to be read.

        Everything that is wrong goes to the findings.

        Raises
        ------
        CorruptCheckpointError
            If the file is not the committed one, or its footer is damaged.
        TransferError
            If it cannot be opened or read.
        """
        check_apart(list(self._items), path=self._path, report=self._findings.damage)
        with SideReader(self._path) as side, self._counting(side):
            locator = Locator(
                side,
                record=self._record,
                metadata=self._metadata,
                envelopes=self._envelopes,
                verify=True,
            )
            footer = locator.footer
            if footer is None:
                return [
                    region for item in self._items for region in self._stock(side, locator, item)
                ]
            self._check_origin(footer)
            footer_items = {entry.extent: entry for entry in footer.items}
            for promised in self._items:
                with self._noting(promised):
                    item = locator.locate(promised.read_item, promised.info)
                    if item.stored is not None:
                        check_stored(promised, item)
                        check_with_footer(
                            side,
                            item,
                            footer_items[item.item],
                            envelopes=self._envelopes,
                            checksums=footer.checksums,
                        )
            return self._regions(footer, file_length=side.length)

    def _check_origin(self, footer: Footer) -> None:
        """Compare a footer with the metadata.

        Its token tells nothing: each rank draws its own, and the metadata have the coordinator's.
        That the file is the committed one, the trailer's CRC-32 of the footer has told.
        """
        if self._trailer is None:
            self._findings.damage(
                CorruptCheckpointError(
                    "the file has a footer of dcp_gds, and the metadata no trailer: they were cut"
                    " off, or another tool wrote them anew",
                    self._path,
                )
            )
        promised = {item.extent for item in self._items}
        for stored in footer.items:
            if stored.extent not in promised:
                self._findings.damage(
                    CorruptCheckpointError(
                        "the footer has an item here, the metadata have none",
                        self._path,
                        offset=stored.extent.offset,
                    )
                )

    def _regions(self, footer: Footer, *, file_length: int) -> list[Region]:
        """All of a file that its footer covers."""
        payload_length = sum(entry.payload.length for entry in footer.items)
        if self._fast:
            self._leave_out_payload(payload_length)
        elif not footer.checksums:
            self._findings.leave_out("saved with checksum=False", length=payload_length)
        blocks = sum(len(entry.block_crc32s) for entry in footer.items)
        items_end = file_length - footer_length(item_count=len(footer.items), block_count=blocks)
        fqns = {item.extent: item.fqn for item in self._items}
        return list(
            regions_of_footer(footer, fqns=fqns, items_end=items_end, payloads=not self._fast)
        )

    def _stock(self, side: SideReader, locator: Locator, promised: PromisedItem) -> list[Region]:
        """Check an item that no footer tells of; what its own CRC-32s cover."""
        regions: list[Region] = []
        with self._noting(promised):
            item = locator.locate(promised.read_item, promised.info)
            if item.transform_descriptors:
                self._findings.leave_out(
                    "items behind stream extensions", length=item.payload.length
                )
            elif item.stored is None:
                regions = self._stock_bytes(side, item)
            else:
                check_stored(promised, item)
                entries = archive_entries(side, item.item)
                if item.payload.length and item.payload not in [entry.extent for entry in entries]:
                    raise CorruptCheckpointError("no entry of the archive is the payload")
                regions = entry_regions(
                    entries, item.payload, fqn=item.fqn, payloads=not self._fast
                )
                self._note_rest(regions, item.payload.length, "tensors without a CRC-32")
        return regions

    def _stock_bytes(self, side: SideReader, item: LoadItem) -> list[Region]:
        """What of a byte item can be checked: most are archives of torch.save, too."""
        regions: list[Region] = []
        # Whether anything else is damaged or is no archive cannot be told.
        with contextlib.suppress(CorruptCheckpointError):
            entries = archive_entries(side, item.item)
            regions = entry_regions(entries, item.payload, fqn=item.fqn, payloads=not self._fast)
        self._note_rest(regions, item.payload.length, "byte items without a footer")
        return regions

    def _note_rest(self, regions: list[Region], payload_length: int, reason: str) -> None:
        """Note how much of a payload no region covers."""
        if self._fast:
            self._leave_out_payload(payload_length)
            return
        covered = sum(
            region.extent.length for region in regions if region.kind is RegionKind.PAYLOAD
        )
        if payload_length > covered:
            self._findings.leave_out(reason, length=payload_length - covered)

    def _leave_out_payload(self, length: int) -> None:
        """Note payload that was not asked for."""
        if length:
            self._findings.leave_out("payload was not read (fast)", length=length)

    @contextlib.contextmanager
    def _counting(self, side: SideReader) -> Iterator[None]:
        """Count what is asked of the kernel, whatever comes of it."""
        try:
            yield
        finally:
            self.moved += side.moved

    @contextlib.contextmanager
    def _noting(self, item: PromisedItem) -> Iterator[None]:
        """Note an item's damage, and go on."""
        try:
            yield
        except CorruptCheckpointError as error:
            self._findings.damage(
                CorruptCheckpointError(
                    str(error.args[0]),
                    error.path or self._path,
                    offset=item.extent.offset if error.offset is None else error.offset,
                    fqn=item.fqn,
                )
            )
