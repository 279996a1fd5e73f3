"""Budget: how much host memory the saves of one rank may take, and how that number comes about."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dcp_gds.errors import ConfigError
from dcp_gds.hostmem.cgrouplimit import CgroupLimit, read_cgroup_limit

__all__ = ["FRACTION_DEFAULT", "FRACTION_VARIABLE", "Budget", "read_budget"]

# What an asynchronous save may take of the host: the state stays where it is, and the data loader,
# other processes and the kernel need the rest.
FRACTION_DEFAULT = 0.40
FRACTION_VARIABLE = "DCP_GDS_HOST_MEMORY_FRACTION"
# torchrun says how many ranks share the node.
_LOCAL_RANKS_VARIABLE = "LOCAL_WORLD_SIZE"


@dataclass(frozen=True, slots=True)
class Budget:
    """What the ceiling of one rank is made of. All quantities are bytes.

    Parameters
    ----------
    fraction
        Share of the host's memory that all ranks of the node may take together.
    local_ranks
        Ranks of this node, which share it evenly.
    total, available
        The kernel's MemTotal and MemAvailable.
    cgroup
        The tightest limit of the process's memory cgroup and of those above it; None if there is
        no limit.
    pinned
        What this process holds locked or pinned already.
    memlock
        RLIMIT_MEMLOCK; None if there is no limit.
    """

    fraction: float
    local_ranks: int
    total: int
    available: int
    cgroup: CgroupLimit | None
    pinned: int
    memlock: int | None

    @property
    def host(self) -> int:
        """The smaller of the host's memory and the cgroup's limit."""
        return self.total if self.cgroup is None else min(self.total, self.cgroup.limit)

    @property
    def share(self) -> int:
        """This rank's part of the fraction, what is pinned included."""
        return int(self.host * self.fraction) // self.local_ranks

    @property
    def free_share(self) -> int:
        """This rank's part of what is free now, in the host and in the cgroup."""
        free = self.available if self.cgroup is None else min(self.available, self.cgroup.free)
        return free // self.local_ranks

    @property
    def ceiling(self) -> int:
        """Most bytes that the saves of this rank may take."""
        return max(0, min(self.share - self.pinned, self.free_share))

    def check(self, asked: int, *, name: str, locked: bool = False) -> int:
        """Return `asked` if it fits; `locked` memory counts against RLIMIT_MEMLOCK as well.

        Raises
        ------
        ConfigError
            With the whole calculation, if it does not.
        """
        limit = self.ceiling
        if locked and self.memlock is not None:
            limit = min(limit, max(0, self.memlock - self.pinned))
        if asked > limit:
            raise ConfigError(
                f"{name} is {asked}, more than the {limit} bytes that this rank may take:"
                f" {self.describe()} Ask for less, or raise {FRACTION_VARIABLE}"
            )
        return asked

    def describe(self) -> str:
        """The calculation in sentences, for a person."""
        if self.cgroup is None:
            host = f"MemTotal {self.total}, no cgroup limit"
        else:
            host = (
                f"the smaller of MemTotal {self.total} and {self.cgroup.path} {self.cgroup.limit}"
            )
        memlock = "no limit" if self.memlock is None else f"{self.memlock}"
        within = f", {self.cgroup.free} in the cgroup" if self.cgroup is not None else ""
        return (
            f"{self.fraction:.0%} of {self.host} bytes ({host}) for {self.local_ranks} local"
            f" rank(s) is {self.share} each, less {self.pinned} pinned already is"
            f" {max(0, self.share - self.pinned)}; free now are {self.available}{within}, so"
            f" {self.free_share} for this rank: the ceiling is {self.ceiling}."
            f" RLIMIT_MEMLOCK for locked memory: {memlock}."
        )


def read_budget(
    *,
    fraction: float | None = None,
    local_ranks: int | None = None,
    pinned: int = 0,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
) -> Budget:
    """Read what the kernel says about this process and its host.

    Parameters
    ----------
    fraction
        Above 0, at most 1; the default is the environment's DCP_GDS_HOST_MEMORY_FRACTION, else 0.4.
    local_ranks
        Default: the environment's LOCAL_WORLD_SIZE, else 1.
    pinned
        Bytes pinned where the kernel does not see them, as in torch's pinned pool.
    root
        Directory that holds `proc`.

    Raises
    ------
    ConfigError
        If a number is out of its range.
    """
    environ = os.environ if environ is None else environ
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    meminfo = _kib_fields(root / "proc/meminfo")
    status = _kib_fields(root / "proc/self/status")
    return Budget(
        fraction=_fraction(fraction, environ),
        local_ranks=_local_ranks(local_ranks, environ),
        total=meminfo["MemTotal"],
        available=meminfo["MemAvailable"],
        cgroup=read_cgroup_limit(root),
        # A page that is both locked and pinned is counted in both.
        pinned=max(status.get("VmLck", 0), status.get("VmPin", 0)) + pinned,
        memlock=None if soft == resource.RLIM_INFINITY else soft,
    )


def _fraction(argument: float | None, environ: Mapping[str, str]) -> float:
    """The fraction from the argument, the environment, or the default."""
    name, value = "host_memory_fraction", argument
    if value is None:
        name, text = FRACTION_VARIABLE, environ.get(FRACTION_VARIABLE, str(FRACTION_DEFAULT))
        try:
            value = float(text)
        except ValueError as error:
            raise ConfigError(f"{name} is {text!r}; expected a number") from error
    number: object = value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 1:
        raise ConfigError(f"{name} is {value!r}; expected a number above 0, at most 1")
    return float(number)


def _local_ranks(argument: int | None, environ: Mapping[str, str]) -> int:
    """The number of ranks on this node from the argument or the environment, else one."""
    text = environ.get(_LOCAL_RANKS_VARIABLE, "1") if argument is None else str(argument)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{_LOCAL_RANKS_VARIABLE} is {text!r}; expected a whole number above 0")
    return int(text)


def _kib_fields(path: Path) -> dict[str, int]:
    """The fields of a file of /proc that are in kB, in bytes."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if unit == "kB":
            fields[name] = int(number) << 10
    return fields
