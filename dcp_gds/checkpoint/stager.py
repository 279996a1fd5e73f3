"""Stager: lets the save's thread read the state, and holds the trainer until it has been read."""

from __future__ import annotations

import contextlib
import errno
import logging
import pickle
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from dcp_gds.checkpoint.blocked import Clock, Phase
from dcp_gds.checkpoint.guard import Guard
from dcp_gds.checkpoint.savegroup import SaveGroup, find_save_group
from dcp_gds.checkpoint.sources import Milestone, Sources
from dcp_gds.checkpoint.statecopy import ThreadOnlyState, copy_state
from dcp_gds.config import WriterOptions
from dcp_gds.errors import DcpGdsError, TransferError, UnsupportedError
from dcp_gds.hostmem.budget import Budget, read_budget
from dcp_gds.io.arena import Arena

__all__ = ["LazyStager"]

# How long a save waits for the one before. A collective that fails ends after gloo's half hour at
# the latest, and a save has two.
SAVE_BEFORE_S_MAX = 3600.0

_log = logging.getLogger("dcp_gds")


class LazyStager(AsyncStager):
    """Copies what is small; large tensors are read by the save's thread while the caller waits.

    When staging fails on one rank, the others have gone on to plan the save, and would wait there
    for ever. So `stage` does not raise: it keeps the error, and the plan of the rank fails with it,
    which DCP tells all ranks.
    """

    def __init__(self, options: WriterOptions) -> None:
        self._host_bytes_max = options.host_bytes_max
        self._host_memory_fraction = options.host_memory_fraction
        self._slot_bytes = options.staging_bytes_max
        self._budget: Budget | None = None
        self._arena = Arena()
        self._guards: list[Guard] = []
        # Handed from `stage` to the writer's first call on the save's thread.
        self._staged: Sources | None = None
        # The last asynchronous save that has come to the writer.
        self._running: Sources | None = None
        self._failure: str | None = None
        if self._host_bytes_max is not None:
            self.budget.check(self._host_bytes_max, name="host_bytes_max")
        elif self._host_memory_fraction is not None:
            # Only to check it: what is free is asked for when it is needed.
            read_budget(fraction=self._host_memory_fraction)

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Always: `async_save` returns when the sources may change."""
        return True

    @property
    def budget(self) -> Budget:
        """Where the ceiling comes from; read once, when it is first needed."""
        if self._budget is None:
            self._budget = read_budget(fraction=self._host_memory_fraction)
        return self._budget

    @property
    def host_bytes_max(self) -> int:
        """Most bytes of copies of the state, all together."""
        if self._host_bytes_max is None:
            self._host_bytes_max = max(0, self.budget.ceiling - self._slot_bytes)
        return self._host_bytes_max

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy what is small; wait for the save before. Never raises: see the class."""
        clock = Clock()
        error: DcpGdsError | None = None
        copied = None
        with clock.waiting():
            if not self._wait_for_save_before():
                error = self._not_over()
            if self._failure is not None:
                _log.warning("the save before has failed: %s", self._failure)
                self._failure = None
            try:
                copied = copy_state(state_dict, copied_bytes_max=self.host_bytes_max)
            except DcpGdsError as caught:
                error = error or caught
            except Exception as caught:  # noqa: BLE001  # whatever it is, peers must not wait
                error = error or UnsupportedError(
                    f"the state cannot be copied for the save: {caught}"
                )
        clock.enter(Phase.PLAN)
        sources = Sources(
            frozenset(threading.enumerate()),
            path=self._directory(),
            guarded=frozenset(self._guarded_storages()),
            live=frozenset(copied.live) if copied else frozenset(),
            copied_bytes=copied.copied_bytes if copied else 0,
            error=error,
            clock=clock,
        )
        self._staged = sources
        return ThreadOnlyState(copied.state if copied else state_dict, sources.end)

    def synchronize_staging(self) -> None:
        """Wait until the sources may change: all, or all but those of guarded optimizers."""
        sources = self._staged or self._running
        if sources is not None:
            sources.wait(Milestone.UNGUARDED if self._guards else Milestone.ALL)
            if sources.is_lost:
                self._staged = None

    def wait_sources(self) -> None:
        """Wait until every tensor of the save at hand has been read; at once if there is none.

        For trainers whose parameters are not changed by a guarded optimizer: call it before they
        change.
        """
        sources = self._staged or self._running
        if sources is not None:
            sources.wait(Milestone.ALL)

    def guard(
        self, *optimizers: torch.optim.Optimizer, model: torch.nn.Module | None = None
    ) -> Guard:
        """Move the wait for the parameters and states of optimizers to their next `step`.

        From then on `async_save` returns when everything else has been read. Forward and backward
        run while the rest is read; each optimizer's step waits for it. The result's `remove` takes
        the guard away.

        Parameters
        ----------
        model
            Looked at for modules that change parameters in forward.

        Raises
        ------
        UnsupportedError
            If the model has such a module; names it.
        """
        guard = Guard(optimizers, model=model, wait=self.wait_sources, forget=self._guards.remove)
        self._guards.append(guard)
        return guard

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        if self._staged is not None:
            self._staged.end()
        raise pickle.PicklingError(
            "GDSWriter cannot go to another process: use AsyncCheckpointerType.THREAD, the default"
        )

    def _directory(self) -> str:
        """Where the save goes, for messages."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _failing(self, sources: Sources | None) -> Iterator[None]:
        """Let the trainer go when its save fails, and keep why for the next one."""
        try:
            yield
        except Exception as error:
            if sources is not None:
                self._failure = str(error)
                sources.end()
            raise

    def _group_of(self, sources: Sources | None) -> SaveGroup | None:
        """The group that an asynchronous save shares with its peers; warns if training does too."""
        group = find_save_group() if sources is not None else None
        if group is not None:
            self._warn(group.warning_before())
        return group

    def _warn(self, message: str | None) -> None:
        """Log it. A Python warning could be an error, and would end the save of one rank only."""
        if message is not None:
            _log.warning("%s: %s", self._directory(), message)

    def _enter_save(self) -> Sources | None:
        """A save has come to the writer: what `stage` left for it; None for a synchronous one.

        Raises
        ------
        TransferError
            If a synchronous save has waited for an asynchronous one in vain.
        """
        if self._staged is not None:
            self._running, self._staged = self._staged, None
            self._running.reach()
            return self._running
        if self._running is not None and self._running.is_mine:
            return self._running
        if not self._wait_for_save_before():
            raise self._not_over()
        return None

    def _not_over(self) -> TransferError:
        """What is wrong when the save before does not end."""
        return TransferError(
            errno.ETIMEDOUT,
            f"the asynchronous save before has not ended in {SAVE_BEFORE_S_MAX:.0f} s; find out"
            " what its drive or another rank waits for",
            self._directory(),
        )

    def _wait_for_save_before(self) -> bool:
        """Wait for the end of the asynchronous save before; False if it does not come."""
        return self._running is None or self._running.wait_end(SAVE_BEFORE_S_MAX)

    def _guarded_storages(self) -> Iterable[int]:
        """Addresses of the storages that guarded optimizers change."""
        for guard in self._guards:
            for tensor in guard.tensors():
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                yield local.untyped_storage().data_ptr()
