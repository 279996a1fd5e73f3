"""The bare writer moves every byte, or says where it failed; it stops when it is told to.

Method: real files; system calls that fail or answer short, put under the real code.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp_gds.benchmark.bare import BareTool
from dcp_gds.benchmark.setting import Setting
from dcp_gds.errors import StorageFullError, TransferError

MIB = 1 << 20
BLOCK = 64 << 10
THREADS = Setting("threads", BLOCK, 4)
LENGTH = 64 * BLOCK

Write = Callable[[int, memoryview, int], int]


def write(path: Path, *, length: int = LENGTH) -> None:
    BareTool().write(path, THREADS, length=length, direct=True)


def test_it_writes_and_reads_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written = BareTool().write(path, THREADS, length=LENGTH, direct=True)
    content = path.read_bytes()
    assert written.length == len(content) == LENGTH
    # Every block, and nothing that a drive could compress.
    assert all(any(content[start : start + 512]) for start in range(0, LENGTH, BLOCK))
    assert len(set(content[:BLOCK])) == 256
    read = BareTool().read(path, THREADS, length=LENGTH, direct=True)
    assert read.length == LENGTH
    for moved in (written, read):
        assert moved.clocks.machine_cpu_s is not None
        assert moved.gb_per_s == LENGTH / moved.clocks.seconds / 1e9


def test_short_steps_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, moved = os.pwrite, []

    def short(fd: int, block: memoryview, offset: int) -> int:
        step = real(fd, block[: 32 << 10], offset)
        moved.append((offset, step))
        return step

    monkeypatch.setattr(os, "pwrite", short)
    write(tmp_path / "file")
    assert sorted(moved) == [(offset, 32 << 10) for offset in range(0, LENGTH, 32 << 10)]


def test_a_file_that_is_too_short(tmp_path: Path) -> None:
    write(tmp_path / "file", length=BLOCK)
    with pytest.raises(TransferError, match="unexpected end of file") as raised:
        BareTool().read(tmp_path / "file", THREADS, length=2 * BLOCK, direct=True)
    assert (raised.value.errno, raised.value.offset) == (errno.EIO, BLOCK)


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TransferError) as raised:
        write(path)
    assert (raised.value.errno, raised.value.filename) == (errno.EEXIST, str(path))
    assert path.read_bytes() == b"old"


def test_an_error_ends_all_threads_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fail_from(monkeypatch, OSError(errno.ENOSPC, "no room"), calls=calls)
    with pytest.raises(StorageFullError) as raised:
        write(tmp_path / "file", length=1000 * BLOCK)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "file"))
    assert_all_ended(calls)


def test_an_interruption_ends_all_threads_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fail_from(monkeypatch, KeyboardInterrupt(), calls=calls)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "file", length=1000 * BLOCK)
    assert_all_ended(calls)


def fail_from(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, calls: list[str]) -> None:
    """Let one write fail while another one, which began before it, is still going on."""
    real_pwrite, real_close = os.pwrite, os.close
    going_on, failed = threading.Event(), threading.Event()

    def pwrite(fd: int, block: memoryview, offset: int) -> int:
        if offset == 0:
            going_on.set()
            assert failed.wait(60)
        elif offset == BLOCK:
            assert going_on.wait(60)
            failed.set()
            raise error
        step = real_pwrite(fd, block, offset)
        calls.append("write")
        return step

    def close(fd: int) -> None:
        calls.append("close")
        real_close(fd)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "close", close)


def assert_all_ended(calls: list[str]) -> None:
    """Some blocks were written, none after the file was closed, and by far not all."""
    assert calls.count("close") == 1
    assert calls[-1] == "close"
    assert 1 <= calls.count("write") < 900
