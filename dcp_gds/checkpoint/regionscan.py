"""Region scan: reads regions of one shard file and compares their checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dcp_gds.checkpoint.filesession import FileSession
from dcp_gds.checkpoint.itemchecksum import ItemChecksum, PayloadChecksum
from dcp_gds.checkpoint.region import Region
from dcp_gds.errors import TransferError
from dcp_gds.format.extent import Extent
from dcp_gds.io.checksum import crc32_of
from dcp_gds.io.engine import Completion
from dcp_gds.io.staging import Slot

__all__ = ["RegionScan"]

# Up to here a region is read together with its neighbours, as in loading.
_SMALL_BYTES_MAX = 256 << 10
_GAP_BYTES_MAX = 8 << 10
# A drive that fails so often has more to say than anyone will read, and each failure may take it
# half a minute.
_FAILURES_MAX = 16

WhenCompared = Callable[[Region, Extent, int, int], None]


class RegionScan:
    """Reads regions through staging slots; their bytes go nowhere else.

    Parameters
    ----------
    session
        The file.
    when_compared
        Called with a region, one of its blocks, the block's stored CRC-32, and that of its bytes.
    when_failed
        Called with each transfer that failed. The region it belongs to is left out, the others are
        read, until there are too many failures.
    when_done
        Called with the length of each region that is done.
    """

    def __init__(
        self,
        session: FileSession,
        *,
        when_compared: WhenCompared,
        when_failed: Callable[[TransferError], None],
        when_done: Callable[[int], None],
    ) -> None:
        self._session = session
        self._when_compared = when_compared
        self._when_failed = when_failed
        self._when_done = when_done
        self._done: set[Region] = set()

    def read(self, regions: Sequence[Region]) -> None:
        """Read ascending regions and wait for them."""
        for _ in range(_FAILURES_MAX):
            try:
                self._read(regions)
                self._session.queue.drain()
            except TransferError as error:
                # The queue has ended what was in flight.
                self._session.abandon()
                self._when_failed(error)
                regions = self._left(regions, error)
            else:
                return

    def _left(self, regions: Sequence[Region], error: TransferError) -> list[Region]:
        """The regions that are not done and not where a transfer failed."""
        start = 0 if error.offset is None else error.offset
        end = self._session.file_length if error.offset is None else start + (error.length or 0)
        return [
            region
            for region in regions
            if region not in self._done
            and (region.extent.end <= start or region.extent.offset >= max(end, start + 1))
        ]

    def _read(self, regions: Iterable[Region]) -> None:
        """Submit all regions; the last ones may be in flight on return."""
        run: list[Region] = []
        for region in regions:
            if region.extent.length > _SMALL_BYTES_MAX:
                self._read_large(region)
                continue
            if run and not self._fits(run, region.extent):
                self._read_run(run)
                run = []
            run.append(region)
        if run:
            self._read_run(run)

    def _fits(self, run: list[Region], extent: Extent) -> bool:
        """Whether an extent is near enough, and the run short enough, to be read with it."""
        gap = extent.offset - run[-1].extent.end
        span = self._session.rounded(run[0].extent.offset, extent.end)
        return gap <= _GAP_BYTES_MAX and span.length <= self._session.pool.slot_bytes

    def _read_run(self, run: list[Region]) -> None:
        """Read neighbouring small regions with one transfer."""
        whole = self._session.rounded(run[0].extent.offset, run[-1].extent.end)
        slot = self._session.take_slot()

        def finish(_: Completion) -> None:
            for region in run:
                checksum = self._checksum(region)
                for block in region.blocks:
                    address = slot.address + (block.offset - whole.offset)
                    checksum.add(block, crc32_of(address, length=block.length))
            self._session.give_back(slot)

        self._session.queue.submit(
            self._session.transfer(whole, slot.address, checksum=False), finish
        )

    def _read_large(self, region: Region) -> None:
        """Read a region by transfers of its own, whose checksums the engine computes."""
        checksum = self._checksum(region)
        alignment = self._session.file.alignment
        length_max = self._session.pool.slot_bytes - alignment
        for piece in checksum.split(region.extent, length_max=length_max, alignment=alignment):
            slot = self._session.take_slot()

            def count(completion: Completion, slot: Slot = slot, piece: Extent = piece) -> None:
                self._session.give_back(slot)
                checksum.add(piece, completion.crc32 or 0)

            address = slot.address + piece.offset % alignment
            self._session.queue.submit(self._session.transfer(piece, address, checksum=True), count)

    def _checksum(self, region: Region) -> ItemChecksum:
        """Collects the checksums of a region, then compares them."""

        def compare(computed: PayloadChecksum) -> None:
            self._done.add(region)
            for block, expected, crc32 in zip(
                region.blocks, region.crc32s, computed.block_crc32s, strict=True
            ):
                self._when_compared(region, block, expected, crc32)
            self._when_done(region.extent.length)

        return ItemChecksum(region.blocks, when_done=compare)
