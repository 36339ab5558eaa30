"""Held-out accuracy during training: a short attack on images that are neither trained on nor tested on."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import measures
from ..config import TrainConfig
from ..core.contracts import Attack, DataSource, Evidence
from ..core.layouts import bearable
from ..core.lean import CHECKED, leaned
from ..core.modes import device_of
from ..core.noise import derive
from ..registry import Registry
from ..spec import Spec
from ..storage.records import Rows
from . import parts
from .devices import memory_format
from .examine import Examination, examined, stack
from .ranks import share, together

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SHORT = 10
"""Steps of the validation attack at most."""


def validation_attack(registry: Registry, config: TrainConfig) -> Attack:
    """The attack of evaluation in the ball of training, cut short; where it has no steps or gives no margins, plain PGD."""
    spec = Spec.parse(config.evaluate.attack).without("eps", "norm", "steps", "step", "restarts")
    # the attack itself says what it has: what hands options on accepts any key
    usual = parts.attack(registry, spec, norm=config.norm, eps=config.eps)
    if getattr(usual, "steps", None) is None or getattr(usual, "stops_early", False):
        spec = Spec.parse("pgd")
    restarts = 1 if registry.accepts("attack", spec.name, "restarts") else None
    steps = min(SHORT, config.evaluate.steps or SHORT)
    return parts.attack(registry, spec, norm=config.norm, eps=config.eps, steps=steps, restarts=restarts)


def examination_of(model: nn.Module, source: DataSource, config: TrainConfig, attack: Attack, registry: Registry) -> Examination:
    """Clean, under the short attack, and under its weighted form where the best weights are chosen by it."""
    alpha, split = _alpha(config), parts.split_of(source, "val")
    images = split.batch(torch.arange(min(CHECKED, len(split)))).images.to(device_of(model))
    chosen = bearable(model, images, memory_format(config.layout, images.device))
    return Examination(
        model=leaned(model, images, chosen) if config.fold else model,
        memory_format=chosen,
        attack=attack,
        norm=config.norm,
        eps=config.eps,
        num_classes=source.num_classes,
        seed=derive("validate", config.seed),
        kernels={alpha: parts.kernel(registry, "exp", alpha)},
        crafts_by_weight=config.select == "tr",
    )


def held_out_rows(
    model: nn.Module, source: DataSource, config: TrainConfig, attack: Attack, registry: Registry, fabric: "Fabric"
) -> Rows:
    """The `val` split, clean and attacked. The ranks share the images, and each knows all rows."""
    split = parts.split_of(source, "val")
    examination = examination_of(model, source, config, attack, registry)
    mine = share(torch.arange(len(split)), fabric)
    size = max(config.batch_size // fabric.world_size, 1)
    with together(fabric):
        seen = examined(examination, split, mine, size, fabric.device) if len(mine) else None
    return everybodys(fabric, seen)


def evidence(rows: Rows, device: torch.device) -> Evidence:
    """What a kernel that observes held-out images is shown."""
    adversarial, clean, labels, index, loss = (
        torch.from_numpy(rows[name]).to(device) for name in ("uniform/logits", "clean/logits", "label", "index", "uniform/loss")
    )
    return Evidence(adversarial, labels, index, clean_logits=clean, loss=loss)


def accuracies(rows: Rows, config: TrainConfig) -> dict[str, Any]:
    """A_nat, A_rob and A_sa with their intervals, and A_tr where the best weights are chosen by it."""
    alpha = _alpha(config)
    estimates = {
        "val_a_nat": measures.accuracy(rows, "clean"),
        "val_a_rob": measures.accuracy(rows, "uniform"),
        "val_a_sa": measures.sampled_accuracy(rows, "exp", alpha),
        "val_a_tr": measures.crafted_accuracy(rows, "exp", alpha),
    }
    entry: dict[str, Any] = {}
    for name, estimate in estimates.items():
        if estimate is not None:
            entry |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return entry


def everybodys(fabric: "Fabric", rows: Rows | None) -> Rows:
    """The rows of all ranks, in their order."""
    if fabric.world_size == 1:
        assert rows is not None
        return rows
    found: list[Rows | None] = [None] * fabric.world_size
    torch.distributed.all_gather_object(found, rows)
    return stack([part for part in found if part is not None])


def _alpha(config: TrainConfig) -> float:
    """Held-out images are weighed as by the most demanding attacker of the evaluation."""
    return max(config.evaluate.alpha_test)
