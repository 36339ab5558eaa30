"""Attacks that gather images: several attempts on an image share a batch, with equal results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.builtins.attacks.apgd import Apgd, TargetedApgd
from wmr_cli.builtins.attacks.autoattack import AutoAttack
from wmr_cli.builtins.attacks.fab_targeted import TargetedFab
from wmr_cli.builtins.attacks.square import MAX_QUERIES_AHEAD, Square
from wmr_cli.core.auto_pgd import run_auto_pgd
from wmr_cli.core.contexts import limiting_batches
from wmr_cli.core.losses import TargetedDlrLoss, get_objective, most_likely_targets
from wmr_cli.core.norms import NORMS
from wmr_cli.core.pgd import start_images
from wmr_cli.core.protocols import Attack, AttackResult, Batch

COUNT = 40


class Counting(nn.Module):
    """A network in float64, so that rounding changes no result, that counts its batches."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, classes)
        ).double()
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        logits: Tensor = self.inner(images)
        return logits


def make_batch(count: int = COUNT) -> Batch:
    images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    return Batch(images, Counting()(images).argmax(dim=1), torch.arange(100, 100 + count))


def run(attack: Attack, model: nn.Module | None = None, batch: Batch | None = None) -> AttackResult:
    objective = get_objective(attack.traits.objective)
    return attack(model or Counting(), batch or make_batch(), objective, seed=3)


def survivors(result: AttackResult) -> list[int]:
    is_correct = result.require_logits().argmax(dim=1) == make_batch().labels
    return is_correct.nonzero().squeeze(1).tolist()


ATTACKS: dict[str, Callable[..., Attack]] = {
    "apgd": lambda norm, eps: Apgd(norm, eps, 10, restarts=2, stops_early=True),
    "apgd-t": lambda norm, eps: TargetedApgd(norm, eps, 10, restarts=2),
    "fab-t": lambda norm, eps: TargetedFab(norm, eps, 10, restarts=2),
    "square": lambda norm, eps: Square(norm, eps, 150, restarts=2, stops_early=True),
    "autoattack": lambda norm, eps: AutoAttack(norm, eps, 5, 100),
}
RADII = {"linf": 0.03, "l2": 0.2}


@pytest.mark.parametrize("norm", RADII)
@pytest.mark.parametrize("name", ATTACKS)
def test_results_do_not_depend_on_the_size_of_batches(name: str, norm: str) -> None:
    attack = ATTACKS[name](norm, RADII[norm])
    whole = run(attack)
    assert 0 < len(survivors(whole)) < COUNT
    for limit in (7, 200):
        model = Counting()
        with limiting_batches(limit):
            found = run(attack, model)
        assert max(model.sizes) <= limit
        torch.testing.assert_close(found.images, whole.images, atol=1e-9, rtol=0)
        assert torch.equal(found.steps_survived, whole.steps_survived)
        assert survivors(found) == survivors(whole)


@pytest.mark.parametrize(
    "attack", [TargetedApgd(eps=1e-6, steps=3), TargetedFab(eps=1e-6, steps=3)]
)
def test_all_targets_of_few_images_share_a_batch(attack: Attack) -> None:
    batch = make_batch(10)
    model = Counting()
    with limiting_batches(40):
        run(attack, model, batch)
    # four wrong classes for each of ten images, and clean passes
    assert set(model.sizes) == {10, 40}


def test_queries_of_few_images_share_a_batch() -> None:
    batch = make_batch(2)
    sequential, gathered = Counting(), Counting()
    run(Square(eps=0.001, queries=400), sequential, batch)
    with limiting_batches(2 * MAX_QUERIES_AHEAD):
        run(Square(eps=0.001, queries=400, stops_early=True), gathered, batch)
    assert len(sequential.sizes) == 400
    assert len(gathered.sizes) < 200
    assert max(gathered.sizes) > 8


def test_an_image_is_left_out_once_it_is_misclassified() -> None:
    patient, hasty = Counting(), Counting()
    attack = Apgd(eps=0.05, steps=40)
    assert survivors(run(attack, patient)) == survivors(
        run(replace(attack, stops_early=True), hasty)
    )
    assert sum(hasty.sizes) < sum(patient.sizes) / 2


@dataclass(frozen=True)
class Complete:
    """All steps of the targeted attack on all images, one target after the other."""

    norm: Literal["linf", "l2"]
    eps: float
    steps: int

    def survivors(self) -> list[int]:
        model = Counting()
        batch = make_batch()
        norm = NORMS[self.norm]
        targets = most_likely_targets(model(batch.images), batch.labels)
        is_correct = torch.ones(COUNT, dtype=torch.bool)
        for number in range(targets.shape[1]):
            start = start_images("uniform", batch, norm, self.eps, seed=3, restart=number)
            objective = TargetedDlrLoss(targets[:, number])
            result = run_auto_pgd(
                model, batch, objective, start, norm=norm, eps=self.eps, steps=self.steps
            )
            is_correct &= result.require_logits().argmax(dim=1) == batch.labels
        return is_correct.nonzero().squeeze(1).tolist()


@pytest.mark.parametrize("norm", RADII)
def test_robust_accuracy_is_that_of_complete_searches(norm: Literal["linf", "l2"]) -> None:
    eps = RADII[norm]
    found = survivors(run(TargetedApgd(norm, eps, 20)))
    assert found == Complete(norm, eps, 20).survivors()
    assert 0 < len(found) < COUNT
    square = Square(norm, eps, 150)
    assert survivors(run(replace(square, stops_early=True))) == survivors(run(square))
