"""Held-out accuracy during training: a short attack on images that are neither trained on nor tested on."""

from typing import Any

import torch
from torch import nn

from .. import measures
from ..config import TrainConfig
from ..core.contexts import model_device
from ..core.data.splits import read_ahead
from ..core.nn.fusion import SAMPLE_SIZE
from ..core.protocols import Attack, DataSource, Evidence
from ..core.rng import derive_seed
from ..core.traits import read_parameter
from ..evaluation.evaluator import Evaluator, stack_rows
from ..registry import Registry
from ..runtime import components
from ..runtime.distributed import Ranks
from ..runtime.fabric import Runtime
from ..spec import Spec
from ..storage.records import Rows

SHORT = 10
"""Steps of the validation attack at most."""


def validation_attack(registry: Registry, config: TrainConfig) -> Attack:
    """The attack of evaluation in the ball of training, cut short; where it has no steps or gives no margins, plain PGD."""
    spec = Spec.parse(config.evaluate.attack).without("eps", "norm", "steps", "step", "restarts")
    # the attack itself says what it has: what hands options on accepts any key
    usual = components.build_attack(registry, spec, norm=config.norm, eps=config.eps)
    if read_parameter(usual, "steps") is None or usual.traits.stops_early:
        spec = Spec.parse("pgd")
    restarts = 1 if registry.accepts("attack", spec.name, "restarts") else None
    steps = min(SHORT, config.evaluate.steps or SHORT)
    return components.build_attack(
        registry, spec, norm=config.norm, eps=config.eps, steps=steps, restarts=restarts
    )


def make_validation_evaluator(
    model: nn.Module, source: DataSource, config: TrainConfig, attack: Attack, registry: Registry
) -> Evaluator:
    """Clean, under the short attack, and under its weighted form where the best weights are chosen by it."""
    alpha, split = _alpha(config), components.get_split(source, "val")
    images = split.batch(torch.arange(min(SAMPLE_SIZE, len(split)))).images.to(model_device(model))
    evaluator = Evaluator(
        model=model,
        attack=attack,
        norm=config.norm,
        eps=config.eps,
        num_classes=source.num_classes,
        seed=derive_seed("validate", config.seed),
        kernels={alpha: components.build_kernel(registry, "exp", alpha)},
        runs_weighted_attack=config.select == "tr",
    )
    return evaluator.prepare(images, layout=config.layout, fuse=config.fold)


def held_out_rows(
    model: nn.Module,
    source: DataSource,
    config: TrainConfig,
    attack: Attack,
    registry: Registry,
    runtime: Runtime,
) -> Rows:
    """The `val` split, clean and attacked. The ranks share the images, and each knows all rows."""
    split = components.get_split(source, "val")
    evaluator = make_validation_evaluator(model, source, config, attack, registry)
    mine = runtime.ranks.share(torch.arange(len(split)))
    size = max(config.batch_size // runtime.ranks.count, 1)
    with runtime.ranks.collective():
        batches = read_ahead(split, mine.split(size)) if len(mine) else ()
        parts = list(evaluator.evaluate_batches(batches, runtime.device))
    return everybodys(runtime.ranks, stack_rows(parts) if parts else None)


def evidence(rows: Rows, device: torch.device) -> Evidence:
    """What a kernel that observes held-out images is shown."""
    adversarial, clean, labels, index, loss = (
        torch.from_numpy(rows[name]).to(device)
        for name in ("uniform/logits", "clean/logits", "label", "index", "uniform/loss")
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
            entry |= {
                name: estimate.value,
                f"{name}_low": estimate.low,
                f"{name}_high": estimate.high,
            }
    return entry


def everybodys(ranks: Ranks, rows: Rows | None) -> Rows:
    """The rows of all ranks, in their order."""
    return stack_rows([part for part in ranks.gather_objects(rows) if part is not None])


def _alpha(config: TrainConfig) -> float:
    """Held-out images are weighed as by the most demanding attacker of the evaluation."""
    return max(config.evaluate.alpha_test)
