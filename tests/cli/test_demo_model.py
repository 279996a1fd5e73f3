"""What the demo trains does not depend on the number of ranks, nor on luck.

Method: properties of the settings, the model, its batches and their text, without training.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dcp_gds.cli.demo_model import Batches, TextModel
from dcp_gds.cli.demo_settings import DemoSettings
from dcp_gds.cli.demo_text import documentation
from tests.cli.demosamples import SETTINGS


@pytest.mark.parametrize("steps", [6, 7, 8, 17, 18, 36, 100])
def test_kill_comes_after_a_save_and_before_the_end(steps: int) -> None:
    settings = DemoSettings.small(steps=steps)
    due = [step for step in range(1, steps + 1) if settings.is_save_due(step)]
    assert settings.kill_step in due[1:]
    assert len(due) >= 4
    assert due[-1] < steps


@pytest.mark.parametrize("settings", [DemoSettings(), SETTINGS], ids=["full", "small"])
def test_parameters_are_those_of_the_model(settings: DemoSettings) -> None:
    with torch.device("meta"):
        model = TextModel(settings)
    assert sum(weight.numel() for weight in model.parameters()) == settings.parameters


def test_batches_depend_on_step_and_half_only() -> None:
    text = documentation()
    first, again = Batches(text, SETTINGS), Batches(text, SETTINGS)
    samples, targets = first.half(step=3, half=1)
    assert torch.equal(samples, again.half(step=3, half=1)[0])
    assert torch.equal(samples[:, 1:], targets[:, :-1])
    assert bytes(samples[0].tolist()) in text
    assert not torch.equal(samples, first.half(step=3, half=0)[0])
    assert not torch.equal(samples, first.half(step=4, half=1)[0])


def test_model_sees_no_later_byte() -> None:
    torch.manual_seed(0)
    model = TextModel(SETTINGS)
    samples = torch.randint(256, (1, SETTINGS.context))
    changed = samples.clone()
    changed[0, 20] ^= 1
    difference = (model(samples) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:20].max() == 0
    assert difference[20:].min() > 0


def test_text_is_the_documentation_even_without_docstrings() -> None:
    text = documentation()
    assert b"Return the absolute value of the argument." in text
    assert len(text) > 200_000
    code = "from dcp_gds.cli.demo_text import documentation as d; print(len(d()))"
    ended = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) > 50_000
