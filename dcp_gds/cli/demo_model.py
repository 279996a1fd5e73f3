"""Demo model: a small transformer that guesses the next byte, and the batches it is trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  the name that everybody knows it by
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dcp_gds.cli.demo_settings import DemoSettings

__all__ = ["BYTE_VALUES", "Batches", "build_model", "next_byte_loss"]

BYTE_VALUES = 256
SEED = 20240607


class Block(nn.Module):
    """Attention over the bytes so far, then a feed-forward part, each beside a residual."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.forward_norm = nn.LayerNorm(width)
        self.forward_in = nn.Linear(width, 4 * width, bias=False)
        self.forward_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, context, width) to the same shape."""
        batch, context, width = x.shape
        query, key, value = (
            part.view(batch, context, self.heads, -1).transpose(1, 2)
            for part in self.attention_in(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, context, width))
        expanded = F.gelu(self.forward_in(self.forward_norm(x)))
        added: Tensor = self.forward_out(expanded)
        return x + added


class TextModel(nn.Module):
    """Byte pairs in, logits of the next byte out."""

    def __init__(self, settings: DemoSettings) -> None:
        super().__init__()
        width = settings.width
        self.pairs = nn.Embedding(settings.pairs, width)
        self.positions = nn.Embedding(settings.context, width)
        self.blocks = nn.ModuleList(
            Block(width=width, heads=settings.heads) for _ in range(settings.blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, BYTE_VALUES, bias=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Map bytes (batch, context) to logits (batch, context, 256)."""
        before = F.pad(samples[:, :-1], (1, 0))
        pairs = (before * BYTE_VALUES + samples) % self.pairs.num_embeddings
        x = self.pairs(pairs) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.logits(self.norm(x))
        return logits


class Batches:
    """Half batches of a text: which samples they hold depends on step and half only.

    So two ranks with a half each and one rank with both see the same global batch.
    """

    def __init__(self, text: bytes, settings: DemoSettings) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._settings = settings

    def half(self, *, step: int, half: int) -> tuple[Tensor, Tensor]:
        """Samples and the bytes that follow theirs, both (batch, context) of int64."""
        generator = torch.Generator().manual_seed(2 * step + half)
        length = self._settings.context + 1
        starts = torch.randint(
            len(self._text) - length, (self._settings.batch, 1), generator=generator
        )
        window = self._text[starts + torch.arange(length)]
        return window[:, :-1], window[:, 1:]


def build_model(settings: DemoSettings, mesh: DeviceMesh) -> TextModel:
    """The model, sharded over the mesh by FSDP2; every rank begins with the same parameters."""
    torch.manual_seed(SEED)
    model = TextModel(settings)
    # Resharding after forward would gather each block twice, which costs more here than memory.
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


def next_byte_loss(model: nn.Module, samples: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats."""
    logits: Tensor = model(samples)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
