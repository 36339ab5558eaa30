"""Adversarial images that stay adversarial once they are saved."""

from pathlib import Path

import pytest
import torch

from wmr_cli.config import EvaluateConfig
from wmr_cli.core.contracts import Attacked, Batch
from wmr_cli.errors import BadInput
from wmr_cli.storage import checkpoints
from wmr_cli.workflows.attack import attack, rounded
from wmr_cli.workflows.planning import plan


def test_an_attack_with_a_loss_of_its_own_is_not_called_weighted(tiny_run, registry):
    config = EvaluateConfig(attacks=("apgd-t:steps=2",), alpha_test=(2.0,), limit=5)
    with pytest.raises(BadInput, match="climbs a loss of its own"):
        list(attack(tiny_run, config, registry, data_dir=Path(), device="cpu", weighted=True))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_move_of_whole_levels_survives_eight_bits(sign, tiny_run, registry):
    """8-bit data moved by 8/255 is moved by 8 levels after rounding, up or down, whatever float32 made of 199/255."""
    task = next(plan(checkpoints.load(tiny_run), EvaluateConfig(eps=(8 / 255,)), registry, Path()))
    levels = torch.arange(20, 84).reshape(1, 1, 8, 8)
    batch = Batch(levels.float() / 255, torch.tensor([0]), torch.tensor([0]))
    moved = batch.images + sign * 8 / 255
    result = rounded(Attacked(moved, torch.zeros(1, 10), torch.zeros(1)), lambda images: torch.zeros(1, 10), batch, task)
    assert torch.equal((result.images * 255).round().long(), levels + sign * 8)
