"""What a stock writer saved through stream extensions loads through them, and is never guessed at.

Method: an extension that flips every bit, with DCP's writer; with it registered, and without.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, Any, cast

import pytest
import torch
from torch.distributed.checkpoint._extension import (
    Extension,
    ExtensionRegistry,
    StreamTransformExtension,
)

from dcp_gds.errors import CorruptCheckpointError, UnsupportedError
from tests.checkpoint.rawbytes import dense_tensor, raw
from tests.checkpoint.refusal import refused
from tests.checkpoint.shardfiles import items_of
from tests.checkpoint.storage import STOCK, load, save

NAME = "stream.flip"
FLIP = bytes(range(255, -1, -1))


class Flipped(io.RawIOBase):
    """Writes to, or reads from, another stream with every bit flipped."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._stream.write(bytes(data).translate(FLIP))
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        return self._stream.read(size).translate(FLIP)


class FlipExtension(StreamTransformExtension):
    """The extension, as DCP asks for it."""

    @staticmethod
    def registry_name() -> str:
        return NAME

    @staticmethod
    def from_descriptor(version: str) -> Extension:
        assert version == "1"
        return FlipExtension()

    def get_descriptor(self) -> str:
        return f"{NAME}/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        return cast(IO[bytes], Flipped(output))

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        return cast(IO[bytes], Flipped(input))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the extension known to every registry, as an installed package would."""
    make = ExtensionRegistry.__init__

    def make_with_flip(self: ExtensionRegistry) -> None:
        make(self)
        self.register(FlipExtension)

    monkeypatch.setattr(ExtensionRegistry, "__init__", make_with_flip)


def saved(path: Path) -> dict[str, torch.Tensor]:
    state = {"x": dense_tensor((50, 7), torch.float32), "y": dense_tensor((3,), torch.int8)}
    save({**state, "n": 5}, path, STOCK, _extensions=[FlipExtension()])
    return state


@pytest.mark.usefixtures("registered")
def test_through_the_extension(tmp_path: Path) -> None:
    state = saved(tmp_path)
    target: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    target["n"] = 0
    load(target, tmp_path)
    assert target["n"] == 5
    assert {name: raw(target[name]) for name in state} == {
        name: raw(tensor) for name, tensor in state.items()
    }


def test_an_unknown_extension(tmp_path: Path) -> None:
    state = saved(tmp_path)
    with refused(UnsupportedError, NAME):
        load(state, tmp_path)


@pytest.mark.usefixtures("registered")
def test_damage_below_the_extension(tmp_path: Path) -> None:
    state = saved(tmp_path)
    (item,) = (item for item in items_of(tmp_path) if item.index.fqn == "x")
    with item.file.open("r+b") as file:
        file.seek(item.offset)
        file.write(bytes(100))
    with refused(CorruptCheckpointError, "x"):
        load(state, tmp_path)
