"""Demo settings: how large the demo's model is, how long it trains, and what each rank is to do."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from dcp_gds.errors import ConfigError

__all__ = ["DemoSettings", "RankTask", "WriterName"]

# A kill in the middle needs a save before it and steps after it.
STEPS_MIN = 6
STEPS_MAX = 10_000
# Eight saves are four turns of each writer, the first of which is not counted. Dividing by nine
# keeps the last of them before the last step, so that there is training for it to hold up.
SAVE_PARTS = 9
# float32 parameters and AdamW's two averages of them.
STATE_BYTES_PER_PARAMETER = 12

# "dcp_gds" or "stock".
WriterName = str


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """Model and training, the same on every rank.

    The defaults make 14 million parameters and 173 MB of state. Most parameters are an embedding
    of byte pairs, which costs little time to train and as much to save as any other.

    Parameters
    ----------
    steps
        Optimizer steps of the uninterrupted run.
    width, heads, blocks
        Of the transformer.
    pairs
        Rows of the byte pair embedding; 65,536 gives each pair its own.
    context, batch
        Bytes of a sample, and samples of half a global batch.
    """

    steps: int = 36
    width: int = 192
    heads: int = 3
    blocks: int = 4
    pairs: int = 1 << 16
    context: int = 64
    batch: int = 4

    def __post_init__(self) -> None:
        if not STEPS_MIN <= self.steps <= STEPS_MAX:
            raise ConfigError(f"steps is {self.steps}; expected {STEPS_MIN} to {STEPS_MAX}")

    @classmethod
    def small(cls, *, steps: int) -> DemoSettings:
        """A model that shows that everything works, but no bandwidth."""
        return cls(steps=steps, width=64, heads=1, blocks=1, pairs=1 << 12, context=32, batch=2)

    @property
    def parameters(self) -> int:
        """Parameters of the model, counted as `demo_model.TextModel` has them."""
        embeddings = (self.pairs + self.context) * self.width
        # Four width x width matrices of attention, eight of the feed-forward part, and two norms.
        block = 12 * self.width**2 + 4 * self.width
        return embeddings + self.blocks * block + 2 * self.width + 256 * self.width

    @property
    def state_bytes(self) -> int:
        """Bytes of a checkpoint, but for a few small items."""
        return self.parameters * STATE_BYTES_PER_PARAMETER

    @property
    def save_every(self) -> int:
        """Steps from save to save."""
        return max(1, self.steps // SAVE_PARTS)

    @property
    def kill_step(self) -> int:
        """The step whose save is killed: two thirds of the way, after at least one other save."""
        return max(2, self.steps * 2 // 3 // self.save_every) * self.save_every

    def is_save_due(self, step: int) -> bool:
        """Whether a save follows this step; none follows the last, which has nothing to block."""
        return step % self.save_every == 0 and step < self.steps


@dataclass(frozen=True, slots=True)
class RankTask:
    """What one rank process is to do.

    Parameters
    ----------
    settings
        Model and training.
    rank, world_size, store
        The process group and the file it meets over.
    directory
        Where the run's checkpoints go.
    writers
        The writers that take turns; empty for a run that does not save.
    alone_saves
        Saves by each writer after the last step, with nothing going on beside them.
    resume_from
        The checkpoint to begin from; None for the first step.
    """

    settings: DemoSettings
    rank: int
    world_size: int
    store: str
    directory: str
    writers: tuple[WriterName, ...]
    alone_saves: int = 0
    resume_from: str | None = None

    def to_json(self) -> str:
        """The task as one JSON object."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RankTask:
        """The task that `to_json` wrote."""
        fields = json.loads(text)
        fields["settings"] = DemoSettings(**fields["settings"])
        fields["writers"] = tuple(fields["writers"])
        return cls(**fields)
