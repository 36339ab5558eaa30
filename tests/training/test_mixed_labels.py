"""Training on mixed images: losses and attacks use both labels, the rest uses the larger part's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.builtin_names import list_builtins
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.defenses.combined import LogitPairing
from wmr_cli.builtins.defenses.pgd import PgdTraining
from wmr_cli.builtins.defenses.trades import Trades
from wmr_cli.builtins.kernels.exp import Exponential, Uniform
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.core.losses import cross_entropy, probability_margin
from wmr_cli.core.protocols import Batch, Defense, Kernel, SecondLabels
from wmr_cli.errors import BadInput
from wmr_cli.registry import Registry
from wmr_cli.runtime import components
from wmr_cli.runtime import fabric as devices
from wmr_cli.runtime.fabric import Hardware, launch
from wmr_cli.training.augmentation import build_augmentation
from wmr_cli.training.compatibility import check_mixing
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.optimization import StepSettings
from wmr_cli.training.setup import set_up_training

LR, EPS, STEP, K, BETA, ALPHA = 0.1, 0.1, 0.04, 3, 6.0, 2.0
SUPPORTED = {"pgd", "fgsm-rs", "natural", "trades", "combined", "alp", "free", "yopo"}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, 3))


def make_batch(size: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels, others = torch.randint(3, (2, size), generator=generator)
    fractions = torch.rand(size, generator=generator) / 2
    images = torch.rand(size, 1, 4, 4, generator=generator)
    return Batch(images, labels, torch.arange(size), SecondLabels(others, fractions))


def make_learner(model: nn.Module, kernel: Kernel, **settings: Any) -> FabricLearner:
    config = TrainConfig(eps=EPS, lr=LR, attack="pgd", **settings)
    learner = FabricLearner(
        devices.single_process("cpu"),
        config,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        attack=Pgd(eps=EPS, steps=K, step=STEP, start="none"),
        kernel=kernel,
        num_classes=3,
    )
    learner.begin_step(0, 0, StepSettings(LR), 16)
    return learner


def soft_targets(batch: Batch) -> Tensor:
    """Return the distribution over classes that a mixed image stands for."""
    assert batch.second is not None
    own = nn.functional.one_hot(batch.labels, 3).float()
    other = nn.functional.one_hot(batch.second.labels, 3).float()
    part = batch.second.fractions[:, None]
    return (1 - part) * own + part * other


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1)


def attack_by_hand(model: nn.Module, images: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    moved = images.clone()
    for _ in range(K):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(moved)).sum(), [moved])
        moved = moved.detach() + STEP * gradient.sign()
        moved = torch.minimum(torch.maximum(moved, images - EPS), images + EPS).clamp(0, 1)
    return moved


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_pgd_trains_and_attacks_on_the_soft_labels(alpha: float, smoothing: float) -> None:
    batch = make_batch()
    targets = soft_targets(batch)
    smoothed = (1 - smoothing) * targets + smoothing / 3

    model = make_model()
    kernel: Kernel = Exponential(alpha) if alpha else Uniform()
    learner = make_learner(model, kernel, label_smoothing=smoothing)
    report = PgdTraining().step(learner, batch)

    expected = make_model()

    def weighted(logits: Tensor) -> Tensor:
        # the weight is that of the larger part's label
        weights = (-alpha * probability_margin(logits, batch.labels)).exp()
        return weights * soft_cross_entropy(logits, targets)

    moved = attack_by_hand(expected, batch.images, weighted)
    logits = expected(moved)
    weights = (-alpha * probability_margin(logits, batch.labels)).exp()
    losses = weights * soft_cross_entropy(logits, smoothed)
    losses.mean().backward()
    torch.testing.assert_close(report.losses, losses.detach())
    torch.testing.assert_close(report.margins, probability_margin(logits, batch.labels).detach())
    assert torch.equal(report.correct, logits.argmax(dim=1) == batch.labels)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours.detach(), theirs.detach() - LR * theirs.grad)


def test_trades_has_soft_labels_in_its_natural_term() -> None:
    batch = make_batch()
    model = make_model()
    report = Trades(BETA).step(make_learner(model, Uniform()), batch)
    expected = make_model()
    clean = expected(batch.images)
    natural = soft_cross_entropy(clean, soft_targets(batch))
    plain = replace(batch, second=None)
    other = Trades(BETA).step(make_learner(make_model(), Uniform()), plain)
    # attack and divergence do not depend on labels
    difference = natural - cross_entropy(clean, batch.labels)
    torch.testing.assert_close(report.losses, other.losses + difference.detach())
    assert (report.losses != other.losses).any()


def test_logit_pairing_attacks_the_predicted_class_alone() -> None:
    batch = make_batch()
    learner = make_learner(make_model(), Uniform())
    defense = LogitPairing()
    assert defense._attack_target(learner, batch).second is None
    assert replace(defense, labels="true")._attack_target(learner, batch) is batch


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_a_second_label_equal_to_the_first_changes_nothing(name: str, registry: Registry) -> None:
    batch = make_batch()
    assert batch.second is not None
    same = replace(batch, second=SecondLabels(batch.labels, batch.second.fractions))
    losses = []
    for each in (same, replace(batch, second=None)):
        defense: Defense = registry.create("defense", name)
        losses.append(defense.step(make_learner(make_model(), Uniform()), each).losses)
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", list_builtins("defense"))
def test_defenses_with_other_label_terms_are_refused(name: str, registry: Registry) -> None:
    config = TrainConfig(defense=name, augment="mixup:0.2")
    augment = build_augmentation(config.augment, (3, 8, 8))
    defense = components.build_defense(registry, name)
    assert defense.traits.mixes_labels == (name in SUPPORTED)
    if name in SUPPORTED:
        check_mixing(augment, defense, config)
        return
    with pytest.raises(BadInput, match=name) as refused:
        check_mixing(augment, defense, config)
    assert "mixup" in refused.value.hint
    check_mixing(build_augmentation("flip", (3, 8, 8)), defense, config)


def test_a_run_is_refused_before_it_starts(registry: Registry) -> None:
    config = resolve({"defense": "mart", "augment": "cutmix"})
    with pytest.raises(BadInput, match="mart"):
        set_up_training(config, registry, Path(), launch(Hardware("cpu"), "32"))
