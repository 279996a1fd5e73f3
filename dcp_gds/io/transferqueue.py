"""Transfer queue: an engine, what each transfer keeps alive, and what to do when it is done."""

from __future__ import annotations

from collections.abc import Callable

from dcp_gds.errors import TransferError
from dcp_gds.io.engine import Completion, Engine, Transfer
from dcp_gds.io.staging import Slot, StagingPool

__all__ = ["TransferQueue"]

WhenDone = Callable[[Completion], None]


class TransferQueue:
    """Submits transfers, waiting for room, and runs a callback for each completion.

    The first transfer that fails ends the queue: nothing is submitted after it, what is in flight
    is waited for, and the error is raised from the call at hand. Buffers may be released only after
    `drain` or `abandon`.

    Parameters
    ----------
    engine
        Moves the bytes. The queue does not close it.
    on_moved
        Called with the number of bytes of each transfer that was done.
    """

    def __init__(self, engine: Engine, *, on_moved: Callable[[int], None] | None = None) -> None:
        self.moved = 0
        self.retries = 0
        self._engine = engine
        self._on_moved = on_moved
        self._pending: dict[int, tuple[WhenDone, object]] = {}

    @property
    def engine(self) -> Engine:
        """The engine that moves the bytes."""
        return self._engine

    def submit(self, transfer: Transfer, when_done: WhenDone, *, keep: object = None) -> None:
        """Queue a transfer; `keep` is referenced until it is done.

        Raises
        ------
        TransferError
            The first failure of any transfer of this queue.
        """
        while self._engine.in_flight >= self._engine.queue_depth:
            self.reap()
        self._pending[id(transfer)] = (when_done, keep)
        self._engine.submit(transfer)

    def slot(self, pool: StagingPool) -> Slot:
        """Take a staging slot, reaping transfers until one is given back."""
        slot = pool.acquire()
        while slot is None:
            reaped = self.reap()
            slot = pool.acquire()
            assert slot is not None or reaped, "slots are held that nothing in flight gives back"
        return slot

    def reap(self) -> bool:
        """Wait for at least one completion; False if nothing was in flight."""
        completions = self._engine.reap()
        self._finish(completions)
        return bool(completions)

    def drain(self) -> None:
        """Wait until nothing is in flight."""
        while self.reap():
            pass

    def abandon(self) -> None:
        """Wait until nothing is in flight, without callbacks and whatever the outcome."""
        self._engine.drain()
        self._pending.clear()

    def _finish(self, completions: list[Completion]) -> None:
        """Run the callbacks of what went well; raise the first error once nothing is in flight."""
        error: TransferError | None = None
        for completion in completions:
            when_done, _ = self._pending.pop(id(completion.transfer))
            self.moved += completion.moved
            self.retries += completion.retries
            if completion.error is not None:
                error = error or completion.error
            elif error is None:
                when_done(completion)
                if self._on_moved is not None:
                    self._on_moved(completion.transfer.length)
        if error is not None:
            self.abandon()
            raise error
