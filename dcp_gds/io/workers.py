"""Workers: threads that carry out an engine's transfers, and what of them has not been reaped."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from dcp_gds.io.engine import Completion

__all__ = ["Workers"]


class Workers:
    """The part of an `Engine` that is the same for all whose threads are Python's.

    Parameters
    ----------
    name
        Of the engine, for the threads' names.
    threads
        Most transfers that are carried out at a time.
    queue_depth
        Most transfers submitted and not yet reaped.
    """

    def __init__(self, *, name: str, threads: int, queue_depth: int) -> None:
        self.queue_depth = queue_depth
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"dcp_gds-{name}")
        self._pending: set[Future[Completion]] = set()

    @property
    def in_flight(self) -> int:
        """Transfers submitted and not yet reaped."""
        return len(self._pending)

    def submit(self, carry_out: Callable[[], Completion]) -> None:
        """Let a thread make this call, which must not raise, and return at once.

        Raises
        ------
        RuntimeError
            If `queue_depth` transfers are in flight, or this is closed.
        """
        if self.in_flight >= self.queue_depth:
            raise RuntimeError(f"{self.queue_depth} transfers are in flight: reap first")
        self._pending.add(self._executor.submit(carry_out))

    def reap(self) -> list[Completion]:
        """Wait for at least one completion and return all that are there."""
        done, self._pending = wait(self._pending, return_when=FIRST_COMPLETED)
        return [future.result() for future in done]

    def drain(self) -> list[Completion]:
        """Wait until nothing is in flight and return what had not been reaped."""
        completions = []
        while self._pending:
            completions += self.reap()
        return completions

    def close(self) -> None:
        """Drain, discard, and end the threads. May be called twice."""
        try:
            self.drain()
        finally:
            self._executor.shutdown()
