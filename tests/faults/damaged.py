"""Damaged: a small checkpoint of three ranks whose files are damaged and made whole again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.checkpoint.rawbytes import dense_tensor
from tests.checkpoint.storage import OURS, Storage, dcp_save

__all__ = ["WORLD_SIZE", "Damaged", "save_part", "whole_state"]

WORLD_SIZE = 3
KIB = 1 << 10


class Damaged:
    """Damages files of a checkpoint and makes them whole again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._whole = {file: file.read_bytes() for file in sorted(path.iterdir())}

    @property
    def files(self) -> list[Path]:
        """All files: `.metadata` first, then the shard files by rank."""
        return list(self._whole)

    @property
    def shard_files(self) -> list[Path]:
        """The shard files by rank."""
        return [file for file in self._whole if file.suffix == ".distcp"]

    def place(self, draw: random.Random) -> tuple[Path, int]:
        """Any byte of any file, `.metadata` as often as a shard file."""
        file = draw.choice(self.files)
        return file, draw.randrange(len(self._whole[file]))

    @contextmanager
    def replaced(self, contents: dict[Path, bytes | None]) -> Iterator[None]:
        """Give files other contents, or take them away."""
        try:
            for file, content in contents.items():
                if content is None:
                    file.unlink()
                else:
                    file.write_bytes(content)
            yield
        finally:
            for file in contents:
                file.write_bytes(self._whole[file])

    def content(self, file: Path) -> bytes:
        """What a file holds when it is whole."""
        return self._whole[file]


def whole_state(*, seed: int) -> dict[str, Any]:
    """What the ranks save together: `cut` rows on each, everything else on whom DCP chooses."""
    small = {f"small{n}": dense_tensor((n + 1, 9), torch.float32, seed=seed + n) for n in range(12)}
    return {
        "cut": dense_tensor((1000, 300), torch.float32, seed=seed),
        "cut_small": dense_tensor((7, 5), torch.int16, seed=seed),
        # Two checksum blocks, which are no shorter than 4 MiB.
        "large": dense_tensor((5 << 18,), torch.float32, seed=seed),
        "packed": dense_tensor((300, 400), torch.bfloat16, seed=seed)[:, ::2],
        "channels_last": dense_tensor((4, 8, 30, 30), torch.float16, seed=seed).contiguous(
            memory_format=torch.channels_last
        ),
        "conj": dense_tensor((6, 8), torch.complex64, seed=seed).conj(),
        "scalar": torch.tensor(float(seed)),
        "step": seed,
        "names": [f"{seed}-{n}" for n in range(3000)],
        **small,
    }


def save_part(path: Path, storage: Storage, seed: int) -> None:
    """Save as one of the ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = whole_state(seed=seed)
    for name in ("cut", "cut_small"):
        state[name] = distribute_tensor(state[name], mesh, [Shard(0)], src_data_rank=None)
    options = {"transfer_bytes": 256 * KIB} if storage is OURS else {}
    dcp_save(state, storage_writer=storage.writer(path, **options))
