"""Injector: the preloaded library that observes its own process's calls, steered from Python."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.filesystems import missing
from tests.ranks import Ranks

__all__ = ["LIBRARY", "Call", "Fault", "Observed", "compiled", "observing", "preloaded"]

# Where the child finds the library that it was started with.
LIBRARY = "DCP_GDS_TESTS_PRELOAD"
SHORT = -1
_HERE = Path(__file__).parent
_COMPILE_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Call:
    """A call and what came of it; `amount` is a length, or the flags of an open."""

    name: str
    path: str
    second_path: str
    data: bytes
    offset: int
    amount: int
    result: int
    error: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the calls `first` to `first + times` of one name.

    Parameters
    ----------
    error
        An errno, or `SHORT` for a transfer of half its length.
    performed
        Whether the call does its work before it fails.
    """

    name: str
    first: int
    error: int
    times: int = 1
    performed: bool = False

    def __str__(self) -> str:
        what = "short" if self.error == SHORT else os.strerror(self.error)
        often = "" if self.times == 1 else f" {self.times} times"
        done = ", performed" if self.performed else ""
        return f"{self.name} {self.first}: {what}{often}{done}"


@dataclass(slots=True)
class Observed:
    """What happened in a block; there once it has ended.

    Parameters
    ----------
    calls, reached
        The calls, and how many of them each fault made fail.
    error, leaked
        For the caller to fill in: what was raised, and what was left open.
    """

    calls: list[Call] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    error: BaseException | None = None
    leaked: list[str] = field(default_factory=list)


class _Note(ctypes.Structure):
    """`PlainNote` of steer.cpp."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("second_path", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("data_length", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("amount", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("error", ctypes.c_int),
    )


def compiled(directory: Path) -> Path:
    """Compile the library; the test is skipped where there is no compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        missing("a C++ compiler, to put a library before libc")
    library = directory / "preload.so"
    options = ("-std=c++20", "-O1", "-shared", "-fPIC")
    sources = [str(_HERE / name) for name in ("preload.cpp", "steer.cpp")]
    subprocess.run(
        [compiler, *options, *sources, "-o", str(library), "-ldl"],
        check=True,
        timeout=_COMPILE_LIMIT_S,
    )
    return library


@contextmanager
def preloaded(library: Path) -> Iterator[Ranks]:
    """A process that runs with the library; it starts when it is first asked to do something."""
    before = dict(os.environ)
    try:
        with Ranks(1) as process:
            os.environ |= {"LD_PRELOAD": str(library), LIBRARY: str(library)}
            process.run(_is_steered)
            os.environ.clear()
            os.environ.update(before)
            yield process
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def observing(
    directory: Path, faults: Sequence[Fault] = (), *, data: bool = False
) -> Iterator[Observed]:
    """Note the calls on what is below a directory, and make some of them fail.

    Runs in a process with the library. With `data` the written bytes are kept.
    """
    library = _library()
    observed = Observed()
    library.faults_watch(os.fsencode(directory), int(data))
    for fault in faults:
        library.faults_inject(
            fault.name.encode(), fault.first, fault.times, fault.error, int(fault.performed)
        )
    try:
        yield observed
    finally:
        library.faults_stop()
        observed.reached = [library.faults_reached(index) for index in range(len(faults))]
        observed.calls = [_call(library, index) for index in range(library.faults_count())]


def _is_steered() -> bool:
    """Whether the library stands before libc in this process."""
    return bool(_library())


def _library() -> ctypes.CDLL:
    """The library that this process was started with."""
    return ctypes.CDLL(os.environ[LIBRARY])


def _call(library: ctypes.CDLL, index: int) -> Call:
    """One note."""
    note = _Note()
    library.faults_note(index, ctypes.byref(note))
    data = ctypes.string_at(note.data, note.data_length) if note.data_length else b""
    return Call(
        os.fsdecode(note.name),
        os.fsdecode(note.path),
        os.fsdecode(note.second_path),
        data,
        note.offset,
        note.amount,
        note.result,
        note.error,
    )
