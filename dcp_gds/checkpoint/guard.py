"""Guard: makes an optimizer's step wait until a save has read what the step changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn

from dcp_gds.errors import UnsupportedError

__all__ = ["Guard"]


class Guard:
    """Hooks in front of the steps of some optimizers, until `remove`.

    `torch.amp.GradScaler` and LR schedulers need nothing of their own: the first calls the
    optimizer's step, and both have only small state, which is copied when a save begins.
    """

    def __init__(
        self,
        optimizers: tuple[torch.optim.Optimizer, ...],
        *,
        model: nn.Module | None,
        wait: Callable[[], None],
        forget: Callable[[Guard], None],
    ) -> None:
        if model is not None:
            _check_model(model)
        self._optimizers = optimizers
        self._wait = wait
        self._forget = forget
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers
        ]

    def remove(self) -> None:
        """Take the hooks away, after waiting for the save at hand. May be called twice."""
        if self._handles:
            self._wait()
            self._forget(self)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def tensors(self) -> Iterator[torch.Tensor]:
        """What the optimizers change: parameters, and the tensors of their states."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in optimizer.state.values():
                yield from _tensors(state)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def _before_step(self, optimizer: object, args: object, kwargs: object) -> None:
        """The hook."""
        self._wait()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in an optimizer's state of one parameter."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry)


def _check_model(model: nn.Module) -> None:
    """Refuse modules whose forward changes a parameter: that comes before the optimizer's step."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UnsupportedError(
                f"{name or 'the model'}: {type(module).__name__} with max_norm changes its weight"
                " in forward, before the optimizer's step: save without guard, or without max_norm"
            )
