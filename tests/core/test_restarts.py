"""Restarts and attempts: which images are attacked, and which result is kept."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from wmr_cli.builtins.attacks.autoattack import AutoAttack
from wmr_cli.core.losses import cross_entropy, get_objective
from wmr_cli.core.protocols import AttackResult, Batch
from wmr_cli.core.restarts import attack_until_misclassified, run_restarts
from wmr_cli.testing import tiny_batch, tiny_model


class Threshold(nn.Module):
    """Class 1 where the one pixel is above a half."""

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)[:, :1]
        return torch.cat([torch.full_like(x, 0.5), x], dim=1)


IMAGES = torch.tensor([0.1, 0.2, 0.3, 0.9]).reshape(4, 1, 1, 1)
LABELS = torch.zeros(4, dtype=torch.long)
BATCH = Batch(IMAGES, LABELS, torch.arange(4))


def attempt(seen: list[list[int]], successes: set[int], value: float) -> Callable[..., Any]:
    """Move the rows in `successes` above 0.5, all others below, and record the rows."""

    def run(rows: Tensor, restart: int = 0) -> AttackResult:
        seen.append(rows.tolist())
        moved = torch.tensor([value if row in successes else 0.4 for row in rows.tolist()]).reshape(
            -1, 1, 1, 1
        )
        return AttackResult(moved, torch.ones_like(rows), Threshold()(moved))

    return run


def test_misclassified_images_are_skipped_and_others_return_clean() -> None:
    seen: list[Any] = []
    result = attack_until_misclassified(
        Threshold(),
        BATCH,
        [attempt(seen, {1}, 0.6), attempt(seen, {0, 1}, 0.7), attempt(seen, {3}, 0.8)],
    )
    # an image that is misclassified without an attack is never attacked
    assert seen == [[0, 1, 2], [0, 2], [2]]
    torch.testing.assert_close(result.images.flatten(), torch.tensor([0.7, 0.6, 0.3, 0.9]))
    assert torch.equal(result.require_logits(), Threshold()(result.images))
    assert result.steps_survived.tolist() == [2, 1, 3, 0]


def test_no_attempt_runs_when_all_images_are_misclassified() -> None:
    seen: list[Any] = []
    attack_until_misclassified(
        Threshold(), BATCH, [attempt(seen, {0, 1, 2}, 0.6), attempt(seen, set(), 0.7)]
    )
    assert seen == [[0, 1, 2]]


def test_without_stopping_every_restart_sees_every_image_and_the_strongest_counts() -> None:
    seen: list[Any] = []
    values = [0.6, 0.8, 0.7]

    def run(rows: Tensor, restart: int) -> AttackResult:
        result: AttackResult = attempt(seen, {0, 1}, values[restart])(rows)
        return result

    result = run_restarts(run, Threshold(), BATCH, cross_entropy, restarts=3, stops_early=False)
    assert seen == [[0, 1, 2, 3]] * 3
    torch.testing.assert_close(result.images.flatten(), torch.tensor([0.8, 0.8, 0.4, 0.4]))


def test_autoattack_is_the_worst_case_of_its_parts() -> None:
    model, batch = tiny_model(), tiny_batch(40)
    labels = model(batch.images).argmax(dim=1)
    batch = replace(batch, labels=labels)
    whole = AutoAttack(eps=0.02, steps=5, queries=30)
    parts = [
        part(model, batch, get_objective(part.traits.objective), seed=3)
        .require_logits()
        .argmax(dim=1)
        == labels
        for part in whole.parts()
    ]
    together = whole(model, batch, cross_entropy, seed=3)
    stands = torch.stack(parts).all(dim=0)
    assert torch.equal(together.require_logits().argmax(dim=1) == labels, stands)
    assert 0 < stands.sum() < 40
    assert torch.equal(together.images[stands], batch.images[stands])
