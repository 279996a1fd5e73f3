"""Plan: will a state fit this host while it is saved, how long does that take, and how often?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.interval import daly_interval_s, lost_share, young_interval_s
from dcp_gds.hostmem.units import format_bytes, format_seconds

__all__ = ["Machine", "Plan", "Way", "make_plan"]

# What is left for the system, the drivers and the data loaders is the rest of it.
CEILING_SHARE = 0.4
# Linux's default vm.dirty_ratio, of what the copy leaves.
DIRTY_SHARE = 0.2
# Device window or staging slots of one writer: its default.
STREAM_BYTES_PER_RANK = 64 << 20
# One copy engine of a GPU on PCIe 4 x16 reaches 25 GB/s to pinned memory; PCIe 5 doubles it.
COPY_BYTES_PER_S = 25 * 10**9

STOCK, CAPPED, STREAMED = "stock async", "capped staging", "streamed (GDS or direct)"


@dataclass(frozen=True, slots=True)
class Machine:
    """The nodes of a job.

    Parameters
    ----------
    world_size, gpus_per_node
        Ranks of the job, and those of a node.
    host_bytes
        Memory of a node.
    drives, drive_bytes_per_s
        Drives of a node, and what each writes in a second: fio tells it.
    copy_bytes_per_s
        From a GPU, or from a tensor in host memory, into the copy, for each rank.
    ceiling_share
        The part of the memory that checkpoints may take.
    mtbf_s
        Mean time between failures of the whole job; None if it is not known.
    """

    world_size: int
    gpus_per_node: int
    host_bytes: int
    drives: int
    drive_bytes_per_s: int
    copy_bytes_per_s: int = COPY_BYTES_PER_S
    ceiling_share: float = CEILING_SHARE
    mtbf_s: float | None = None

    def __post_init__(self) -> None:
        for name in (
            *("world_size", "gpus_per_node", "host_bytes"),
            *("drives", "drive_bytes_per_s", "copy_bytes_per_s"),
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 < self.ceiling_share <= 1:
            raise ConfigError(f"ceiling_share is {self.ceiling_share}; expected 0 to 1")
        if self.mtbf_s is not None and not self.mtbf_s > 0:
            raise ConfigError(f"mtbf_s is {self.mtbf_s}; expected more than 0")

    @property
    def ranks_per_node(self) -> int:
        """Ranks on a full node."""
        return min(self.world_size, self.gpus_per_node)

    @property
    def write_bytes_per_s(self) -> int:
        """What a node writes: each rank writes one file, so no more drives than ranks are busy."""
        return min(self.drives, self.ranks_per_node) * self.drive_bytes_per_s

    @property
    def ceiling_bytes(self) -> int:
        """The most memory that checkpoints may take on a node."""
        return int(self.host_bytes * self.ceiling_share)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to save, on one node.

    Parameters
    ----------
    name
        Which way.
    host_bytes, host_share
        Memory of the node that it takes at most, page cache included, and its part of the whole.
    within_ceiling
        Whether that is no more than the ceiling.
    blocked_s, durable_s
        How long the training waits, and when the last byte is on the drives.
    interval_s
        How often to save: Daly's interval for `blocked_s`, but never before the last save is
        durable. None without a time between failures.
    lost_share
        What blocking and failures then cost, as a part of the time.
    """

    name: str
    host_bytes: int
    host_share: float
    within_ceiling: bool
    blocked_s: float
    durable_s: float
    interval_s: float | None
    lost_share: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A state on a machine.

    Parameters
    ----------
    state_bytes, bytes_per_rank, bytes_per_node
        The whole state, and its parts when it is sharded evenly.
    ceiling_bytes, write_bytes_per_s
        Of a node.
    young_s
        Young's interval for the stock way, to compare; None without a time between failures.
    ways
        Stock async, capped, streamed.
    verdict
        What to do, in a sentence or two.
    """

    state_bytes: int
    bytes_per_rank: int
    bytes_per_node: int
    ceiling_bytes: int
    write_bytes_per_s: int
    young_s: float | None
    ways: tuple[Way, ...]
    verdict: str


def make_plan(state_bytes: int, machine: Machine) -> Plan:
    """Return how a state can be saved on a machine.

    Raises
    ------
    ConfigError
        If there is no state.
    """
    if state_bytes < 1:
        raise ConfigError(f"the state has {state_bytes} bytes; expected at least 1")
    per_rank = math.ceil(state_bytes / machine.world_size)
    per_node = per_rank * machine.ranks_per_node
    ways = (
        _stock(machine, per_rank=per_rank, per_node=per_node),
        _capped(machine, per_rank=per_rank, per_node=per_node),
        _streamed(machine, per_node=per_node),
    )
    young = None
    if machine.mtbf_s is not None:
        young = young_interval_s(ways[0].blocked_s, mtbf_s=machine.mtbf_s)
    return Plan(
        state_bytes=state_bytes,
        bytes_per_rank=per_rank,
        bytes_per_node=per_node,
        ceiling_bytes=machine.ceiling_bytes,
        write_bytes_per_s=machine.write_bytes_per_s,
        young_s=young,
        ways=ways,
        verdict=_verdict(ways, machine),
    )


def _stock(machine: Machine, *, per_rank: int, per_node: int) -> Way:
    """DCP's async_save: all is copied, and the copy goes through the page cache.

    Memory: the copy, and dirty pages up to the kernel's limit, which is a share of what the copy
    leaves (Documentation/admin-guide/sysctl/vm.rst, dirty_ratio). Blocked: the copy. Durable: the
    copy and then the writing, at what the drives do at best.
    """
    left = max(machine.host_bytes - per_node, 0)
    dirty = min(per_node, int(left * DIRTY_SHARE))
    blocked = per_rank / machine.copy_bytes_per_s
    durable = blocked + per_node / machine.write_bytes_per_s
    return _way(STOCK, machine, host=per_node + dirty, blocked=blocked, durable=durable)


def _capped(machine: Machine, *, per_rank: int, per_node: int) -> Way:
    """As much is copied as the ceiling allows, and written past the page cache.

    Blocked: until what does not fit has been written and the rest copied. Copies are written while
    the next ones are made, so writing alone counts for the end.
    """
    staged = min(per_node, machine.ceiling_bytes)
    written = per_node / machine.write_bytes_per_s
    copied = per_rank / machine.copy_bytes_per_s
    blocked = max((per_node - staged) / machine.write_bytes_per_s, copied)
    return _way(CAPPED, machine, host=staged, blocked=blocked, durable=max(written, copied))


def _streamed(machine: Machine, *, per_node: int) -> Way:
    """Nothing is copied but through small windows: the training waits until all is read."""
    written = per_node / machine.write_bytes_per_s
    host = min(STREAM_BYTES_PER_RANK * machine.ranks_per_node, per_node)
    return _way(STREAMED, machine, host=host, blocked=written, durable=written)


def _way(name: str, machine: Machine, *, host: int, blocked: float, durable: float) -> Way:
    """A way, with the interval that suits it."""
    interval = lost = None
    if machine.mtbf_s is not None:
        interval = max(daly_interval_s(blocked, mtbf_s=machine.mtbf_s), durable)
        lost = lost_share(interval, blocked_s=blocked, mtbf_s=machine.mtbf_s)
    return Way(
        name=name,
        host_bytes=host,
        host_share=host / machine.host_bytes,
        within_ceiling=host <= machine.ceiling_bytes,
        blocked_s=blocked,
        durable_s=durable,
        interval_s=interval,
        lost_share=lost,
    )


def _verdict(ways: tuple[Way, ...], machine: Machine) -> str:
    """What to do."""
    stock, capped, streamed = ways
    ceiling = f"{machine.ceiling_share:.0%} of the host"
    if stock.within_ceiling:
        return (
            f"a stock async save takes {stock.host_share:.0%} of the host and fits below the"
            f" ceiling of {ceiling}; streamed saves take {format_bytes(streamed.host_bytes)}"
        )
    if stock.host_share <= 1:
        start = f"a stock async save takes {stock.host_share:.0%} of the host, above the ceiling of"
    else:
        start = f"a stock async save needs {stock.host_share:.0%} of the host, past its end and"
        start += " above the ceiling of"
    return (
        f"{start} {ceiling}: cap the staging at {format_bytes(capped.host_bytes)} and wait"
        f" {format_seconds(capped.blocked_s)} a save, or stream with"
        f" {format_bytes(streamed.host_bytes)} and wait {format_seconds(streamed.blocked_s)}"
    )
