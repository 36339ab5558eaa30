"""Held-out accuracy during training: a short attack on images that are neither trained on nor tested on."""

from typing import Any

import torch
from torch import nn

from .. import measures
from ..config import TrainConfig
from ..core.contracts import Attack, DataSource
from ..core.noise import derive
from ..registry import Registry
from ..spec import Spec
from . import parts
from .examine import Examination, examined

SHORT = 10
"""Steps of the validation attack at most."""


def validation_attack(registry: Registry, config: TrainConfig) -> Attack:
    """The attack of evaluation in the ball of training, cut short."""
    spec = Spec.parse(config.evaluate.attack).without("eps", "norm", "steps", "step")
    takes_steps = registry.accepts("attack", spec.name, "steps")
    steps = min(SHORT, config.evaluate.steps or SHORT) if takes_steps else None
    return parts.attack(registry, spec, norm=config.norm, eps=config.eps, steps=steps)


def validate(
    model: nn.Module, source: DataSource, config: TrainConfig, attack: Attack, registry: Registry, device: Any
) -> dict[str, float]:
    """A_nat, A_rob and A_sa of the `val` split, and A_tr where the best weights are chosen by it."""
    split = parts.split_of(source, "val")
    alpha = max(config.evaluate.alpha_test)
    examination = Examination(
        model=model,
        attack=attack,
        norm=config.norm,
        eps=config.eps,
        num_classes=source.num_classes,
        seed=derive("validate", config.seed),
        kernels={alpha: parts.kernel(registry, "exp", alpha)},
        crafts_by_weight=config.select == "tr",
    )
    with parts.exact_float32():
        rows = examined(examination, split, torch.arange(len(split)), config.batch_size, device)
    estimates = {
        "val_a_nat": measures.accuracy(rows, "clean"),
        "val_a_rob": measures.accuracy(rows, "uniform"),
        "val_a_sa": measures.sampled_accuracy(rows, "exp", alpha),
        "val_a_tr": measures.crafted_accuracy(rows, "exp", alpha),
    }
    return {name: estimate.value for name, estimate in estimates.items() if estimate is not None}
