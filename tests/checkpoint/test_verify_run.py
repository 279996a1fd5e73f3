"""A verification reads everything once, within its memory, and goes on where a drive fails.

Method: several metadata files, leftovers, an engine that fails one transfer, and the callbacks of
progress; a process with a state of 4 GiB, watched through /proc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dcp_gds.checkpoint import verify
from dcp_gds.checkpoint.committed import Committed, read_metadata_file
from dcp_gds.checkpoint.unreferenced import KEPT_MAX
from dcp_gds.checkpoint.verify import verify_checkpoint
from dcp_gds.checkpoint.verifyreport import Verdict
from dcp_gds.config import STAGING_BYTES_MIN
from dcp_gds.io.engine import Completion, EngineName
from tests.checkpoint.outside import peak_of
from tests.checkpoint.rawbytes import dense_tensor
from tests.checkpoint.shardfiles import flip_bit
from tests.checkpoint.storage import OURS, Storage, dcp_save, save
from tests.checkpoint.verifying import both_kinds, damaged, item_named, saved, state, token_of
from tests.io.stepengine import StepEngine
from tests.ranks import Ranks

MIB = 1 << 20


def save_as_rank(path: Path, storage: Storage) -> None:
    """Save a tensor of this rank and one of all."""
    rank = dist.get_rank()
    state = {
        f"own{rank}": dense_tensor((40, 9), torch.int16),
        "shared": dense_tensor((7,), torch.int8),
    }
    dcp_save(state, storage_writer=storage.writer(path))


@both_kinds
def test_a_checkpoint_of_two_ranks(
    storage: Storage, tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    """Of ours each shard file has a token of its own."""
    ranks(2).run(save_as_rank, tmp_path, storage)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is (Verdict.GOOD if storage is OURS else Verdict.UNCHECKED)
    assert (report.files, report.items, report.damage_count) == (2, 3, 0)


def save_by_rank(path: Path) -> list[str]:
    """Make what two ranks leave that save without collectives; their tokens."""
    tokens = []
    for rank in range(2):
        save({"own": dense_tensor((40, rank + 1), torch.int16)}, path, OURS, overwrite=True)
        tokens.append(token_of(path))
        (path / ".metadata").rename(path / f"__{rank}.metadata")
    return tokens


def test_the_metadata_of_every_rank(tmp_path: Path) -> None:
    tokens = save_by_rank(tmp_path)
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.GOOD
    assert report.metadata_files == ("__0.metadata", "__1.metadata")
    assert list(report.tokens) == tokens
    assert (report.files, report.items, report.bytes) == (2, 2, 240)
    (second,) = tmp_path.glob(f"*{tokens[1]}.distcp")
    flip_bit(second, offset=1)
    damaged(tmp_path, second)


def test_rank_metadata_beside_common_ones_are_no_part(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "__0.metadata").write_bytes(b"left")
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.GOOD
    assert report.unreferenced == ("__0.metadata",)


def test_leftovers_are_listed_and_change_nothing(tmp_path: Path) -> None:
    saved(tmp_path)
    token = "ab" * 16
    names = [f".metadata-{token}.tmp", f"__0_0-{token}.distcp", "notes.txt"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(10))
    (tmp_path / "folder").mkdir()
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.GOOD
    assert list(report.unreferenced) == sorted(names)
    assert (report.unreferenced_count, report.unreferenced_bytes) == (3, 30)
    for number in range(KEPT_MAX):
        (tmp_path / f"more{number}").touch()
    report = verify_checkpoint(tmp_path)
    assert len(report.unreferenced) == KEPT_MAX
    assert report.unreferenced_count == KEPT_MAX + 3


@pytest.mark.parametrize("new_token", [False, True], ids=["same save", "another save"])
def test_only_what_a_save_replaced_meanwhile_is_not_called_damaged(
    new_token: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard file goes between the reading of the metadata and its own."""
    file = saved(tmp_path)

    def read_and_lose(path: Path, *, allow: Iterable[str]) -> Committed:
        committed = read_metadata_file(path, allow=allow)
        if file.exists():
            if new_token:
                save(state(), tmp_path, overwrite=True)
            else:
                file.unlink()
        return committed

    monkeypatch.setattr(verify, "read_metadata_file", read_and_lose)
    report = verify_checkpoint(tmp_path)
    if new_token:
        assert (report.verdict, report.damages) == (Verdict.UNREADABLE, ())
        (text,) = report.unreadable
        assert "overwritten while it was being verified; verify again" in text
        assert verify_checkpoint(tmp_path).verdict is Verdict.GOOD
    else:
        assert (report.verdict, report.unreadable) == (Verdict.DAMAGED, ())


@both_kinds
@pytest.mark.parametrize("engine", ["direct", "buffered"])
def test_memory_is_bounded(engine: str, storage: Storage, tmp_path: Path) -> None:
    save({"x": dense_tensor((32 * MIB,), torch.uint8)}, tmp_path, storage)
    report = verify_checkpoint(tmp_path, engine=engine, staging_bytes_max=STAGING_BYTES_MIN)
    assert report.verified_bytes == 32 * MIB
    assert report.staging_bytes_peak <= STAGING_BYTES_MIN
    assert report.engine == engine


@both_kinds
def test_progress_ends_at_the_total(storage: Storage, tmp_path: Path) -> None:
    file = saved(tmp_path, storage)
    seen: list[tuple[int, int]] = []
    verify_checkpoint(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {file.stat().st_size}
    assert seen[-1][0] == file.stat().st_size
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@both_kinds
@pytest.mark.parametrize("fail_at", range(0, 6, 2))
def test_a_transfer_that_fails_is_one_finding(
    fail_at: int, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The region it belongs to is not verified; all others are, and what is damaged there found."""
    file = saved(tmp_path, storage)
    whole = verify_checkpoint(tmp_path).verified_bytes
    engine = StepEngine(queue_depth=3, seed=fail_at, fail_at=fail_at)

    def start(name: EngineName, *, queue_depth: int) -> StepEngine:
        return engine

    monkeypatch.setattr("dcp_gds.checkpoint.verify.start_engine", start)
    report = damaged(tmp_path, "injected", file)
    assert len(engine.done) > fail_at
    failed = engine.done[fail_at]
    small = whole - 5 * MIB
    lost = whole - report.verified_bytes
    assert (
        lost == 5 * MIB if failed.offset >= item_named(tmp_path, "large").offset else lost <= small
    )


def test_a_drive_that_always_fails_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({f"x{n}": torch.zeros(MIB // 4) for n in range(40)}, tmp_path)

    class Broken(StepEngine):
        def reap(self) -> list[Completion]:
            self._fail_at = len(self.done)
            return super().reap()

    monkeypatch.setattr(
        "dcp_gds.checkpoint.verify.start_engine",
        lambda name, *, queue_depth: Broken(queue_depth=2),
    )
    report = verify_checkpoint(tmp_path)
    assert report.verdict is Verdict.DAMAGED
    assert report.damage_count == 16
    assert report.verified_bytes == 0


def verifying(path: Path) -> Iterator[None]:
    verify_checkpoint(path.parent)  # torch's first fake tensor
    yield
    assert verify_checkpoint(path).verified_bytes == 4 << 30


@pytest.mark.slow
@both_kinds
def test_4_gib(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "step"
    save({f"w{n:02}": torch.full((64 * MIB // 4,), float(n)) for n in range(64)}, path, storage)
    assert peak_of(verifying, path).extra_mib <= 64 + 64
