"""Auto-PGD: its schedule, its optimum where that is known, and what it gives back."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from wmr_cli.builtins.attacks.apgd import Apgd
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.core.auto_pgd import checkpoints, run_auto_pgd
from wmr_cli.core.losses import OBJECTIVES, KlObjective, cross_entropy, logit_margin
from wmr_cli.core.norms import NORMS
from wmr_cli.core.protocols import AttackResult, Batch, Objective


def network(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 20), nn.Tanh(), nn.Linear(20, classes, bias=False)
    )


def problem(count: int = 24) -> tuple[Tensor, Tensor]:
    """Images, and labels that the model predicts."""
    images = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return images, network()(images).argmax(dim=1)


def run_apgd(  # noqa: PLR0913
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    objective: Objective = cross_entropy,
    norm: str = "linf",
    eps: float = 0.2,
    steps: int = 20,
    start: Tensor | None = None,
) -> AttackResult:
    begin = images if start is None else start
    batch = Batch(images, labels, torch.arange(len(labels)))
    return run_auto_pgd(model, batch, objective, begin, norm=NORMS[norm], eps=eps, steps=steps)


def test_checkpoints_become_more_frequent() -> None:
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(1000) == [220, 410, 570, 700, 800, 870, 930, 990]
    assert checkpoints(10) == [3, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == [1]
    assert checkpoints(0) == [0]


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_attack_on_a_linear_model_reaches_the_optimum(norm: str, dual: int) -> None:
    torch.manual_seed(5)
    linear = nn.Linear(16, 2)
    images, labels = torch.full((8, 1, 4, 4), 0.5), torch.arange(8) % 2
    model = nn.Sequential(nn.Flatten(), linear)
    attacked = run_apgd(model, images, labels, norm=norm, eps=0.3)
    lost = 0.3 * (linear.weight[0] - linear.weight[1]).norm(p=dual).item()
    before = logit_margin(model(images), labels)
    torch.testing.assert_close(
        logit_margin(attacked.require_logits(), labels), before - lost, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_auto_pgd_is_at_least_as_strong_as_pgd(norm: Literal["linf", "l2"]) -> None:
    model, (images, labels) = network(), problem()
    found = [
        attack(model, Batch(images, labels, torch.arange(24)), cross_entropy, seed=3)
        for attack in (Apgd(norm, 0.2, 40), Pgd(norm, 0.2, 40))
    ]
    assert (
        cross_entropy(found[0].require_logits(), labels).mean()
        >= cross_entropy(found[1].require_logits(), labels).mean() - 1e-4
    )


def test_the_first_two_steps_by_hand() -> None:
    model, (images, labels) = network(), problem()

    def gradient_sign(at: Tensor) -> Tensor:
        at = at.clone().requires_grad_()
        return torch.autograd.grad(cross_entropy(model(at), labels).sum(), at)[0].sign()

    def clipped(moved: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(moved, images - 0.2), images + 0.2).clamp(0, 1)

    first = clipped(images + 0.4 * gradient_sign(images))
    torch.testing.assert_close(run_apgd(model, images, labels, steps=1).images, first)
    # with two steps the first checkpoint comes after one: the step size is kept if it improved
    assert checkpoints(2)[0] == 1
    rose = cross_entropy(model(first), labels) > cross_entropy(model(images), labels)
    assert rose.all()
    second = clipped(
        first
        + 0.75 * (clipped(first + 0.4 * gradient_sign(first)) - first)
        + 0.25 * (first - images)
    )
    higher = cross_entropy(model(second), labels) > cross_entropy(model(first), labels)
    # no label changes here, so that the higher of the two is given back
    kept = (model(first).argmax(dim=1) != labels) == (model(second).argmax(dim=1) != labels)
    expected = torch.where((higher & kept)[:, None, None, None], second, first)[kept]
    torch.testing.assert_close(run_apgd(model, images, labels, steps=2).images[kept], expected)


def test_misclassified_image_is_preferred_to_a_higher_objective() -> None:
    """Logits (x, 1 - x, …): the objective prefers a small x, a large x is misclassified."""

    class Ramp(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            x = images.flatten(1)[:, :1]
            return torch.cat([torch.zeros_like(x), x - 0.5], dim=1)

    def away(logits: Tensor, labels: Tensor) -> Tensor:
        return -logits[:, 1]

    images, labels = torch.full((1, 1, 1, 1), 0.45), torch.tensor([0])
    start = torch.full((1, 1, 1, 1), 0.6)
    attacked = run_apgd(Ramp(), images, labels, away, start=start, steps=10)
    assert attacked.require_logits().argmax(dim=1).tolist() == [1]
    assert attacked.images.item() == pytest.approx(0.6)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_auto_pgd_raises_every_objective(name: str) -> None:
    model, (images, labels) = network(), problem()
    objective = OBJECTIVES[name]
    attacked = run_apgd(model, images, labels, objective)
    assert (
        objective(attacked.require_logits(), labels).mean()
        > objective(model(images), labels).mean()
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_without_radius_or_steps_the_image_or_the_start_comes_back(norm: str) -> None:
    model, (images, labels) = network(), problem()
    assert torch.equal(run_apgd(model, images, labels, norm=norm, eps=0.0, steps=5).images, images)
    assert torch.equal(
        run_apgd(model, images, labels, norm=norm, steps=0, start=images / 2).images,
        images / 2,
    )


def test_objective_with_state_is_selected_for_remaining_images() -> None:
    model, (images, labels) = network(), problem()
    divergence = KlObjective.from_logits(model(images))
    attack = Apgd(eps=0.05, steps=5, restarts=3, stops_early=True)
    whole = attack(model, Batch(images, labels, torch.arange(24)), divergence, seed=3)
    rows = torch.tensor([5, 1, 9])
    part = attack(model, Batch(images[rows], labels[rows], rows), divergence[rows], seed=3)
    torch.testing.assert_close(part.images, whole.images[rows], atol=1e-5, rtol=0)


def test_restarts_keep_misclassified_images_and_never_lower_the_objective() -> None:
    model, (images, labels) = network(), problem()
    few, many = (
        Apgd(eps=0.1, steps=5, restarts=count)(
            model, Batch(images, labels, torch.arange(24)), cross_entropy, seed=3
        )
        for count in (1, 4)
    )
    were_fooled, are_fooled = (
        found.require_logits().argmax(dim=1) != labels for found in (few, many)
    )
    assert (are_fooled | ~were_fooled).all()
    same = are_fooled == were_fooled
    assert (
        cross_entropy(many.require_logits(), labels) >= cross_entropy(few.require_logits(), labels)
    )[same].all()
