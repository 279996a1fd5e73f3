"""After a power cut at any moment of a save the directory holds the old checkpoint or the new one.

Method: the calls of a save are recorded with what they write, and replayed up to each of them in
turn; of what no sync had made durable by then all is kept, or nothing, or what a seeded draw says.
Each directory that can come of it is loaded. Every sync of the recording is left out once, and
then a load must find something else: so none is missing, and none is needless, but the one that
a save makes because it cannot know whether the directory that it found is durable.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoint.refusal import unwrapped
from tests.faults.calls.crash import NAMES, SYNCS, WRITES, Crash, Fate, unpack
from tests.faults.calls.injector import Call
from tests.faults.calls.trial import NEW, OLD, generation_of, recorded_with_data
from tests.faults.tally import Tally
from tests.ranks import Ranks

ENGINES = ("auto", "buffered")
# A save to a directory that it makes, to one that was made before and not synced, and to one with a
# checkpoint, all of it durable.
KINDS = ("save", "made", "overwrite")
FEW = pytest.mark.parametrize("draws", [2, pytest.param(60, marks=pytest.mark.slow)])
SEED = 31
# The syncs of a save. A name says what is synced, and whether that is before the rename.
ORDER = ("parent", "shard file", "directory before", "metadata", "directory after")
# The old checkpoint's directory is durable already.
NEEDLESS = ("overwrite", "parent")

# Without the last sync of a fresh save there may be nothing; of an overwrite, what the old
# metadata name has been removed.
LOST = (("save", "directory after"), ("made", "directory after"))

Keep = Callable[[int], Fate]


@dataclass(frozen=True)
class Recording:
    """A save's calls, and what was there before."""

    kind: str
    root: Path
    before: dict[str, bytes]
    calls: list[Call]

    @property
    def renamed(self) -> int:
        """How many calls there are up to the rename and with it."""
        return [call.name for call in self.calls].index("rename") + 1

    @property
    def committed(self) -> int:
        """How many calls there are up to the directory's sync after it; all if there is none."""
        for count, call in enumerate(self.calls[self.renamed :], self.renamed + 1):
            if call.name == "fsync":
                return count
        return len(self.calls)

    def allowed(self, count: int) -> set[int]:
        """What may be there after so many calls: generations, 0 for no checkpoint."""
        old = OLD if self.kind == "overwrite" else 0
        if count < self.renamed:
            return {old}
        return {old, NEW} if count < self.committed else {NEW}

    def sync_of(self, call: Call) -> str:
        """Which of the syncs a call is."""
        if call.path.endswith(".distcp"):
            return "shard file"
        if call.path.endswith(".tmp"):
            return "metadata"
        if Path(call.path) == self.root:
            return "parent"
        after = any(call is later for later in self.calls[self.renamed :])
        return f"directory {'after' if after else 'before'}"

    def without(self, sync: str) -> Recording:
        """The same save without one of its syncs."""
        kept = [call for call in self.calls if call.name not in SYNCS or self.sync_of(call) != sync]
        assert len(kept) == len(self.calls) - 1
        return Recording(self.kind, self.root, self.before, kept)


@dataclass(frozen=True)
class Found:
    """What a load found after a power cut: a generation or an error, and what may be there."""

    count: int
    keep: str
    outcome: str
    right: bool


def record(process: Ranks, root: Path, kind: str, engine: str) -> Recording:
    root.mkdir(exist_ok=True)
    ((before, calls),) = process.run(recorded_with_data, root, kind, engine)
    return Recording(kind, root, before, calls)


def keeps(calls: list[Call], *, seed: str, draws: int) -> Iterator[tuple[str, Keep]]:
    """What may become of the changes by `calls` that are not durable."""
    changes = [index for index, call in enumerate(calls) if call.name in (*NAMES, *WRITES)]

    def of(names: tuple[str, ...]) -> Keep:
        return lambda index: Fate.KEPT if calls[index].name in names else Fate.DROPPED

    yield "nothing", of(())
    yield "all", of((*NAMES, *WRITES))
    yield "names", of(NAMES)
    yield "writes", of(WRITES)
    yield "half", lambda _: Fate.HALF
    yield "the last", lambda index: Fate.KEPT if index == changes[-1] else Fate.DROPPED
    yield "all but the last", lambda index: Fate.DROPPED if index == changes[-1] else Fate.KEPT
    for draw in range(draws):
        chance = random.Random(f"{seed}, {draw}")
        fates = [chance.choice(list(Fate)) for _ in calls]
        yield f"draw {draw}", fates.__getitem__


def crashed(recording: Recording, scratch: Path, *, draws: int) -> Iterator[Found]:
    """Load what each power cut leaves, one that leaves the same as another only once."""
    crash = Crash(recording.root, recording.before, recording.calls)
    seen = set()
    for count in range(len(recording.calls) + 1):
        for name, keep in keeps(recording.calls[:count], seed=f"{SEED}, {count}", draws=draws):
            image = crash.image(count, keep)
            allowed = recording.allowed(count)
            key = (frozenset(image.items()), frozenset(allowed))
            if key in seen:
                continue
            seen.add(key)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            unpack(image, scratch)
            try:
                generation = generation_of(scratch / "step")
            except BaseException as error:  # noqa: BLE001  DCP raises a BaseException
                yield Found(count, name, repr(unwrapped(error)), False)
            else:
                yield Found(count, name, outcome_of(generation), generation in allowed)


def outcome_of(generation: int) -> str:
    return {0: "no checkpoint", OLD: "old checkpoint", NEW: "new checkpoint"}[generation]


@FEW
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_leaves_the_old_or_the_new_one(
    kind: str, engine: str, draws: int, tmp_path: Path, observed_process: Ranks, tally: Tally
) -> None:
    recording = record(observed_process, tmp_path / "recorded", kind, engine)
    found = list(crashed(recording, tmp_path / "crashed", draws=draws))
    for outcome, times in Counter(one.outcome for one in found).items():
        tally.add(f"power cut, {kind}", outcome, times=times)
    assert [one for one in found if not one.right] == [], f"seed {SEED}"
    assert {one.outcome for one in found} == {
        "new checkpoint",
        "old checkpoint" if kind == "overwrite" else "no checkpoint",
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_sync_is_missing_from_the_recording(
    kind: str, engine: str, tmp_path: Path, observed_process: Ranks
) -> None:
    recording = record(observed_process, tmp_path, kind, engine)
    syncs = [recording.sync_of(call) for call in recording.calls if call.name in SYNCS]
    assert tuple(syncs) == ORDER


@pytest.mark.parametrize(
    ("kind", "sync"),
    [(kind, sync) for kind in KINDS for sync in ORDER if (kind, sync) != NEEDLESS],
)
def test_without_any_one_sync_a_power_cut_can_lose_a_checkpoint(
    kind: str, sync: str, tmp_path: Path, observed_process: Ranks
) -> None:
    """This is what shows that the test above can fail."""
    recording = record(observed_process, tmp_path / "recorded", kind, "auto").without(sync)
    wrong = (one for one in crashed(recording, tmp_path / "crashed", draws=0) if not one.right)
    first = next(wrong, None)
    assert first is not None, f"nothing needs the sync of the {sync}"
    lost = "no checkpoint" if sync == "parent" or (kind, sync) in LOST else "CorruptCheckpointError"
    assert first.outcome.startswith(lost)
