"""Every system call of a save and a load fails in turn: right bytes, or an error and no harm.

Method: a process with a library before libc. The calls of an undisturbed run are noted; then each
is made to fail in a run of its own: by errno or short, once or from then on, done all the same or
not. Afterwards an undisturbed load says which checkpoint is there, bit for bit.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.calls.injector import SHORT, Call, Fault
from tests.faults.calls.trial import KINDS, Trial, recorded, tried
from tests.faults.calls.verdict import verdict
from tests.faults.tally import Tally
from tests.ranks import Ranks

ENGINES = ("auto", "buffered")
ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR)
ALWAYS = 1 << 30
TRANSFERS = ("pread", "pwrite", "read", "write")
# What a server may have done when it is said to have failed.
UNCERTAIN = ("fallocate", "ftruncate", "mkdir", "pwrite", "rename", "unlink", "write")
# The names that a save or load must be seen to call, or else the library is not before libc.
EXPECTED = {
    "save": {"open", "pwrite", "fdatasync", "fsync", "rename", "write", "mkdir", "fallocate"},
    "overwrite": {"open", "pwrite", "fdatasync", "fsync", "rename", "write", "unlink", "flock"},
    "refused save": {"stat", "fsync"},
    "load": {"open", "pread", "fstat", "close"},
}
# These a save cannot do without: the second fault comes when it removes what it had begun.
FIRST = (
    Fault("fallocate", 0, errno.ENOSPC),
    Fault("pwrite", 3, errno.EIO, ALWAYS),
    Fault("fdatasync", 0, errno.EIO),
    Fault("write", 0, errno.ENOSPC),
)
SECOND = ("unlink", "fstatvfs")


def faults_of(calls: list[Call], *, complete: bool) -> Iterator[Fault]:
    """Every fault, or those of each name's first, middle and last call."""
    for name, count in Counter(call.name for call in calls).items():
        for call in sorted(range(count) if complete else {0, count // 2, count - 1}):
            numbers = ERRNOS if complete or call == 0 else ERRNOS[: 2 - call % 2]
            yield from (Fault(name, call, number) for number in numbers)
            if name in TRANSFERS:
                yield Fault(name, call, SHORT)
            if name in UNCERTAIN:
                yield Fault(name, call, errno.EIO, performed=True)
            # Not EINTR: Python calls again after it, for ever.
            if complete or call == 0:
                yield Fault(name, call, errno.EIO, ALWAYS)
            if complete:
                yield Fault(name, call, errno.ENOSPC, ALWAYS)


def calls_of(root: Path, kind: str, engine: str) -> list[Call]:
    """The calls of an undisturbed run, without what was written."""
    return recorded(root, kind, engine)


def try_all(root: Path, trials: list[Trial]) -> tuple[Counter[str], list[str]]:
    """Carry out trials; how often each outcome came, and what is wrong."""
    outcomes: Counter[str] = Counter()
    wrongs = []
    for trial in trials:
        try:
            outcome, wrong = try_one(root, trial)
        except BaseException as error:  # noqa: BLE001  DCP raises a BaseException
            outcome, wrong = "", f"afterwards: {error!r}"
        outcomes[outcome] += 1
        if wrong:
            wrongs.append(f"{trial}: {wrong}")
    return outcomes, wrongs


def try_one(root: Path, trial: Trial) -> tuple[str, str]:
    """Carry out a trial, or the same of the call before.

    How many transfers a load needs depends on where in a page its targets happen to lie.
    """
    found = tried(root, trial)
    first = trial.faults[0]
    while not found.observed.reached[0] and first.first:
        first = Fault(first.name, first.first - 1, first.error, first.times, first.performed)
        found = tried(root, Trial(trial.kind, trial.engine, (first, *trial.faults[1:])))
    if not found.observed.reached[0]:
        return "", "the call was not reached"
    return verdict(root, trial, found)


def check(process: Ranks, root: Path, trials: list[Trial], tally: Tally) -> None:
    """Carry out trials, a hundred at a time since a process that hangs is killed, and count."""
    wrongs: list[str] = []
    for start in range(0, len(trials), 100):
        ((outcomes, wrong),) = process.run(try_all, root, trials[start : start + 100])
        wrongs += wrong
        for outcome, times in outcomes.items():
            tally.add(f"system call fails, {trials[0].kind}", outcome, times=times)
    assert not wrongs, "\n".join([f"{len(wrongs)} of {len(trials)}:", *wrongs])


def every_trial(
    process: Ranks, root: Path, kind: str, engine: str, *, complete: bool
) -> list[Trial]:
    """A trial for each fault."""
    (calls,) = process.run(calls_of, root, kind, engine)
    assert {call.name for call in calls} >= EXPECTED[kind]
    return [Trial(kind, engine, (fault,)) for fault in faults_of(calls, complete=complete)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_some_of_the_calls(
    kind: str, engine: str, tmp_path: Path, observed_process: Ranks, tally: Tally
) -> None:
    trials = every_trial(observed_process, tmp_path, kind, engine, complete=False)
    check(observed_process, tmp_path, trials, tally)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_the_calls(
    kind: str, engine: str, tmp_path: Path, observed_process: Ranks, tally: Tally
) -> None:
    trials = every_trial(observed_process, tmp_path, kind, engine, complete=True)
    check(observed_process, tmp_path, trials, tally)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_fault_does_not_hide_the_first(
    engine: str, tmp_path: Path, observed_process: Ranks, tally: Tally
) -> None:
    """Removing what a failed save had begun may fail too; the files stay until the next save."""
    (calls,) = observed_process.run(calls_of, tmp_path, "overwrite", engine)
    # What is opened before the shard file is closed by then.
    (written,) = {call.path for call in calls if call.name == "fallocate"}
    closed = [call.path for call in calls if call.name == "close"].index(written)
    seconds = [Fault(name, 0, errno.EPERM, ALWAYS) for name in SECOND]
    seconds.append(Fault("close", closed, errno.EPERM, ALWAYS))
    trials = [
        Trial("overwrite", engine, (first, second))
        for first in FIRST
        for second in seconds
        # The metadata are written behind the shard file's close, which would fail first.
        if (first.name, second.name) != ("write", "close")
    ]
    check(observed_process, tmp_path, trials, tally)
