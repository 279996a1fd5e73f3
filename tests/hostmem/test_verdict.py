"""The verdict is the worst that happened, with its numbers, and advice that has them too.

Method: a made-up host whose counters are moved between two samples.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from dcp_gds.hostmem.memoryreport import MemoryReport, report_of
from dcp_gds.hostmem.sample import Sampler
from dcp_gds.hostmem.tally import Tally
from dcp_gds.hostmem.verdict import Verdict
from tests.hostmem.hostfiles import HostFiles

MIB_PAGES = (1 << 20) // mmap.PAGESIZE
GIB_PAGES = 1024 * MIB_PAGES


class Host:
    """A host that is sampled at first, and when something has happened."""

    def __init__(self, root: Path) -> None:
        self.files = HostFiles(root)
        self._sampler = Sampler(root=root)
        self._tally = Tally(self._sampler.sample())

    def report(
        self,
        *,
        staging_bytes: int | None = None,
        interval_s: float | None = None,
        engine: str | None = None,
    ) -> MemoryReport:
        self._tally.add(self._sampler.sample())
        return report_of(
            self._tally.change(), staging_bytes=staging_bytes, interval_s=interval_s, engine=engine
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def test_nothing_happened(host: Host) -> None:
    host.files.add(pswpin=3, nr_dirty=20 * MIB_PAGES)
    report = host.report()
    assert (report.verdict, report.reasons, report.advice) == (Verdict.CALM, (), ())


def test_dirty_pages(host: Host) -> None:
    host.files.add(nr_dirty=GIB_PAGES, nr_writeback=GIB_PAGES // 2)
    report = host.report(engine="buffered")
    assert report.verdict == "dirty pages piling up"
    assert report.reasons == ("dirty pages grew by 1.5 GiB, to 1.5 GiB",)
    assert "direct" in report.advice[0]


def test_dirty_pages_that_were_there_before(tmp_path: Path) -> None:
    files = HostFiles(tmp_path / "host")
    files.set(nr_dirty=8 * GIB_PAGES)
    sampler = Sampler(root=files.root)
    tally = Tally(sampler.sample())
    files.set(nr_dirty=7 * GIB_PAGES)
    tally.add(sampler.sample())
    assert report_of(tally.change()).verdict is Verdict.CALM


def test_another_writer_is_blamed_where_ours_left_nothing(host: Host) -> None:
    host.files.add(nr_dirty=2 * GIB_PAGES)
    (advice,) = host.report(engine="direct").advice
    assert "another writer" in advice
    assert "2.0 GiB" in advice


@pytest.mark.parametrize("counter", ["pgscan_kswapd", "pgscan_direct"])
def test_scanning(counter: str, host: Host) -> None:
    host.files.add(**{counter: 7})
    host.files.set(available=GIB_PAGES * mmap.PAGESIZE)
    report = host.report(staging_bytes=4 << 30, interval_s=1200)
    assert report.verdict is Verdict.SCANNING
    assert "scanned 7 pages" in report.reasons[0]
    assert report.advice == (
        "halve staging_bytes_max to 2.0 GiB or save every 40 minutes instead of 20 minutes: only"
        " 1.0 GiB were available at the worst moment",
    )


def test_advice_without_any_save(host: Host) -> None:
    host.files.add(pgscan_kswapd=7)
    (advice,) = host.report(staging_bytes=1 << 20).advice
    assert advice.startswith("use smaller buffers for checkpoints or save less often: only 16")


@pytest.mark.parametrize("counter", ["pswpin", "pswpout"])
def test_swapping(counter: str, host: Host) -> None:
    host.files.add(pgscan_kswapd=7, nr_dirty=2 * GIB_PAGES, **{counter: 300 * MIB_PAGES})
    report = host.report()
    assert report.verdict is Verdict.SWAPPING
    assert [reason.split()[0] for reason in report.reasons] == ["300.0", "the", "dirty"]
    assert "GDSWriter" in report.advice[1]
    assert "vm.swappiness" in report.advice[2]


def test_a_counter_that_is_reset_in_between(host: Host) -> None:
    host.files.set(pgscan_kswapd=0, pswpout=0)
    assert host.report().verdict is Verdict.CALM
    host.files.set(pgscan_kswapd=2)
    assert host.report().deltas["pgscan_kswapd"] == 2


def test_a_counter_that_comes_later(host: Host) -> None:
    host.files.set(allocstall_normal=50)
    assert host.report().deltas["allocstall"] == 0
    host.files.add(allocstall_normal=3)
    assert host.report().deltas["allocstall"] == 3
