"""How fast is each kind of CRC-32 here, against merely reading the same memory?"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.measure import Run, interleave, timed
from bench.options import parse_options
from bench.output import Column, publish
from dcp_gds import _core

# Within a core's second-level cache, and repeated as often as makes up the whole length.
CACHE_BYTES = 256 << 10
READ = "plain read"
ZLIB = "zlib"

Memory = NDArray[np.uint64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    question = "CRC-32 of one core"
    options = parse_options(question, arguments, rounds=7, gib=0.5)
    length = options.length // CACHE_BYTES * CACHE_BYTES
    memory = np.arange(length // 8, dtype=np.uint64)
    passes: dict[str, Callable[[Memory], object]] = {READ: _read, ZLIB: _zlib}
    for kind in _core.crc32_kinds():
        used = ", in use" if kind == _core.crc32_kind() else ""
        passes[kind + used] = partial(_crc32, kind=kind)
    runs = [
        _run(memory, passes[name], name=name, turn=turn)
        for turn, name in interleave(options.select(list(passes)), rounds=options.rounds)
    ]
    publish(
        question,
        options,
        runs,
        name="crc",
        columns=(
            # By CPU time: one thread, and then others on the machine take nothing from the figure.
            Column("from memory, GB per CPU s", lambda run: 1 / run.cpu_s_per_gb),
            Column("in cache, GB per CPU s", _cached_gb_per_cpu_s),
        ),
    )


def _read(memory: Memory) -> object:
    """Touch every word at the least cost that numpy offers."""
    return np.bitwise_xor.reduce(memory)


def _zlib(memory: Memory) -> int:
    return zlib.crc32(memory.data)


def _crc32(memory: Memory, *, kind: str) -> int:
    return _core.crc32(memory.ctypes.data, length=memory.nbytes, kind=kind)


def _run(memory: Memory, action: Callable[[Memory], object], *, name: str, turn: int) -> Run:
    """All of the memory once, then its beginning as often as takes as many bytes."""
    beginning = memory[: CACHE_BYTES // memory.itemsize]
    times = memory.nbytes // beginning.nbytes

    def repeat() -> None:
        for _ in range(times):
            action(beginning)

    clocks = timed(lambda: action(memory))
    return Run(name, turn, memory.nbytes, clocks, facts={"in_cache_cpu_s": timed(repeat).cpu_s})


def _cached_gb_per_cpu_s(run: Run) -> float:
    return run.length / 1e9 / run.facts["in_cache_cpu_s"]


if __name__ == "__main__":
    main()
