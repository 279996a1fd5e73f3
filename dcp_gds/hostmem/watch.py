"""Watch: samples the host's memory beside the work of a process, and judges each save."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from dcp_gds.errors import ConfigError, DcpGdsError
from dcp_gds.hostmem.iterations import IterationTimes, TimesSummary
from dcp_gds.hostmem.memoryreport import MemoryReport, report_of
from dcp_gds.hostmem.runlog import Iteration, RunLog, Save
from dcp_gds.hostmem.sample import Sample, Sampler
from dcp_gds.hostmem.tally import Change, Tally

__all__ = ["HostMemoryWatch"]

# One sample costs 0.3 ms of CPU: at 10 Hz that is 0.3% of one core, at 200 Hz 6%.
INTERVAL_S_DEFAULT = 0.1
INTERVAL_S_MIN = 0.005
INTERVAL_S_MAX = 60.0
# Ten minutes at 10 Hz, of about 5 KB each.
RING_SAMPLES_MAX = 6_000
# The thread ends at the next sample; one that hangs in a read of /proc must not hold up training.
JOIN_S_MAX = 1.0


class HostMemoryWatch:
    """Watches the host's memory while checkpoints are saved.

    A writer has one of its own, which samples during saves only. Give one to several writers, or
    start it (`with HostMemoryWatch() as watch`), to see the time between saves too. Nothing that
    goes wrong in it is raised into the training: a counter that cannot be read is unknown, and a
    log that cannot be written ends and leaves its error in `log_error`.

    Parameters
    ----------
    interval_s
        Seconds between two samples, 0.005 to 60.
    jsonl
        A file for samples, saves and iterations, which `dcp-gds report` draws; a file that is there
        is replaced.
    pids
        Processes whose memory is added up.
    root
        Where /proc and /sys are.

    Raises
    ------
    ConfigError
        If the interval is out of range.
    TransferError
        If `jsonl` cannot be opened.
    """

    def __init__(
        self,
        *,
        interval_s: float = INTERVAL_S_DEFAULT,
        jsonl: str | os.PathLike[str] | None = None,
        pids: Sequence[int | str] = ("self",),
        root: Path = Path("/"),
    ) -> None:
        if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
            raise ConfigError(
                f"interval_s is {interval_s}; expected {INTERVAL_S_MIN} to {INTERVAL_S_MAX} seconds"
            )
        self.log_error: DcpGdsError | None = None
        self._interval_s = interval_s
        self._sampler = Sampler(pids, root=root)
        self._log = None if jsonl is None else RunLog(jsonl, interval_s=interval_s)
        self._ring: deque[Sample] = deque(maxlen=RING_SAMPLES_MAX)
        self._times = IterationTimes()
        self._started = False
        self._total: Tally | None = None
        self._save: Tally | None = None
        self._save_began_s: float | None = None
        self._saves_interval_s: float | None = None
        self._begun = self._saves = 0
        self._last_report: MemoryReport | None = None
        self._forget_thread()

    def start(self) -> None:
        """Sample from now on, between saves too."""
        self._started = True
        self._run()

    def close(self) -> None:
        """Take a last sample, end the thread and the log. May be called twice."""
        if self._started:
            self._started = False
            self.tick()
        self._rest()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> HostMemoryWatch:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The last samples, the oldest first."""
        with self._own_lock():
            return tuple(self._ring)

    @property
    def iterations(self) -> TimesSummary | None:
        """Times of the iterations so far; None before the first."""
        return self._times.summary()

    @property
    def saves(self) -> int:
        """How many saves have ended."""
        return self._saves

    @property
    def last_report(self) -> MemoryReport | None:
        """What the last save did to the host's memory."""
        return self._last_report

    def change(self) -> Change:
        """What changed since the first sample; takes one if there is none."""
        if self._total is None:
            self.tick()
        with self._own_lock():
            assert self._total is not None, "a tick has just made it"
            return self._total.change()

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """Measure one iteration of the training: the time in the block."""
        began_s, begun, in_save = time.monotonic(), self._begun, self._save is not None
        yield
        ended_s = time.monotonic()
        in_save = in_save or self._begun != begun
        self._times.add(ended_s - began_s, in_save=in_save)
        self._to_log(Iteration(ended_s, ended_s - began_s, in_save))

    def begin_save(self, *, follow: bool = True) -> None:
        """Sample for a save, once or from now on. One that has not ended is dropped."""
        with self._own_lock():
            sample = self._sampler.sample()
            if self._save_began_s is not None:
                self._saves_interval_s = sample.time_s - self._save_began_s
            self._save_began_s = sample.time_s
            self._begun += 1
            self._add(sample)
            self._save = Tally(sample)
        self._to_log(sample)
        if follow:
            self.follow_save()

    def follow_save(self) -> None:
        """Sample until the save ends. A save that fails while it is planned never gets here."""
        self._run()

    def end_save(
        self, *, staging_bytes: int | None = None, engine: str | None = None, path: str = ""
    ) -> MemoryReport | None:
        """Judge the save that began; None if none did."""
        self.tick()
        with self._own_lock():
            change, self._save = self._save.change() if self._save else None, None
        if not self._started:
            self._rest()
        if change is None:
            return None
        report = report_of(
            change,
            staging_bytes=staging_bytes,
            interval_s=self._saves_interval_s,
            engine=engine,
            iterations=self.iterations,
        )
        self._saves, self._last_report = self._saves + 1, report
        end_s = time.monotonic()
        facts = {"path": path, "engine": engine, "verdict": report.verdict, "pid": os.getpid()}
        self._to_log(Save(end_s - change.seconds, end_s, facts))
        return report

    def abandon_save(self) -> None:
        """End a save that never came to its end, if there is one, without judging it."""
        with self._own_lock():
            begun, self._save = self._save is not None, None
        if begun and not self._started:
            self._rest()

    def tick(self, *, complete: bool = True) -> None:
        """Take one sample now; `complete` as in `Sampler.sample`."""
        # Read under the lock: samples are added in the order in which they were read.
        with self._own_lock():
            sample = self._sampler.sample(complete=complete)
            self._add(sample)
        self._to_log(sample)

    def _add(self, sample: Sample) -> None:
        """Add a sample to all that is kept; the lock is held."""
        self._ring.append(sample)
        if self._total is None:
            self._total = Tally(sample)
        else:
            self._total.add(sample)
        if self._save is not None:
            self._save.add(sample)

    def _to_log(self, record: Sample | Save | Iteration) -> None:
        """Write to the log; the first error ends it."""
        log = self._log
        if log is None:
            return
        try:
            match record:
                case Sample():
                    log.sample(record)
                case Save():
                    log.save(record)
                case Iteration():
                    log.iteration(record)
        except DcpGdsError as error:
            self.log_error, self._log = error, None

    def _own_lock(self) -> threading.Lock:
        """The lock of this process.

        A fork copies the lock as it is, held or not, and leaves the thread behind: the child has a
        new lock, no thread, and no log, which stays the parent's.
        """
        if os.getpid() != self._pid:
            self._forget_thread()
            self._log = None
        return self._lock

    def _forget_thread(self) -> None:
        """Begin as in a process without a thread."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def _run(self) -> None:
        """Have the thread run. It knows its watch by a weak reference, and ends with it."""
        with self._own_lock():
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=_sample_until,
                args=(weakref.ref(self), self._stop, self._interval_s),
                name="dcp-gds-watch",
                daemon=True,
            )
            # A process that may have no more threads has a sample at begin and end all the same.
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def _rest(self) -> None:
        """End the thread."""
        with self._own_lock():
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(JOIN_S_MAX)


def _sample_until(
    watch: weakref.ref[HostMemoryWatch], stop: threading.Event, interval_s: float
) -> None:
    """Take samples until told to stop, or until nobody has the watch any more."""
    while not stop.wait(interval_s):
        owner = watch()
        if owner is None:
            return
        owner.tick(complete=False)
        del owner
