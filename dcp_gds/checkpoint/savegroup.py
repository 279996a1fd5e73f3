"""Save group: the process group of an asynchronous save, and what may go wrong on it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist

__all__ = ["SaveGroup", "find_save_group"]

# The other ranks wait in a collective while the slowest one writes. Drives drift by a factor of
# two from save to save, so beyond this share of the timeout the next save may not make it.
TIMEOUT_SHARE_MAX = 0.5

_SAVER = "torch.distributed.checkpoint.state_dict_saver"


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """What is known of the group whose collectives a save uses.

    Parameters
    ----------
    is_default
        Whether it is the default group, on which training runs too.
    timeout_s
        Longest wait of its collectives in seconds; None if its backend does not tell.
    """

    is_default: bool
    timeout_s: float | None = None

    def warning_before(self) -> str | None:
        """What to tell before the save: its collectives may mix with those of training."""
        if not self.is_default:
            return None
        return (
            "an asynchronous save uses the default process group, on which training runs too:"
            " their collectives may meet in another order on each rank, and hang; give async_save"
            ' process_group=torch.distributed.new_group(backend="gloo", timeout=...)'
        )

    def warning_after(self, *, write_s: float) -> str | None:
        """What to tell after this rank has written for so many seconds, if peers had to wait."""
        if self.timeout_s is None or write_s < self.timeout_s * TIMEOUT_SHARE_MAX:
            return None
        return (
            f"writing took {write_s:.1f} s and the collectives of the save's process group give up"
            f" after {self.timeout_s:.0f} s: a slower save would fail on every rank; make the group"
            f" with timeout=timedelta(seconds={max(1, round(write_s * 4))}) or more"
        )


def find_save_group() -> SaveGroup | None:
    """Find the group of the save that DCP is making on this thread; None if there are no peers.

    DCP does not hand its group to a storage writer. It stands in the frame of DCP's function that
    called the writer, and is only read there. A DCP that keeps it elsewhere gives None: no warning,
    and nothing else changes.
    """
    if not dist.is_initialized():
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != _SAVER:
        frame = frame.f_back
    wrapper = frame.f_locals.get("distW") if frame is not None else None
    if wrapper is None or not getattr(wrapper, "use_dist", False):
        return None
    group = wrapper.group or dist.group.WORLD
    if group is None or dist.get_world_size(group) == 1:
        return None
    return SaveGroup(is_default=group is dist.group.WORLD, timeout_s=_timeout_s(group))


def _timeout_s(group: dist.ProcessGroup) -> float | None:
    """Seconds after which a collective of CPU tensors gives up; None if it cannot be known."""
    try:
        options = group._get_backend(torch.device("cpu")).options
    except (RuntimeError, AttributeError):  # no backend for CPU tensors, or one without options
        return None
    return options._timeout.total_seconds()
