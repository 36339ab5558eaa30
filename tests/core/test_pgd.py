"""The ascent loop against a loop written by hand, closed forms, and what must not change."""

import itertools
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from support.typed import not_none
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.core.contexts import evaluating
from wmr_cli.core.losses import OBJECTIVES, cross_entropy
from wmr_cli.core.norms import NORMS
from wmr_cli.core.pgd import PgdSettings, StartKind, project_to_ball, run_pgd, start_images
from wmr_cli.core.protocols import Attack, AttackResult, Batch, Objective
from wmr_cli.core.restarts import pick_lower_margin

INDEX = torch.arange(100, 124)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 20), nn.Tanh(), nn.Linear(20, 3, bias=False))


def problem(count: int = 24) -> tuple[Tensor, Tensor]:
    """Images in multiples of 1/64, so that float arithmetic is exact."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(65, (count, 1, 4, 4), generator=generator) / 64
    return images, torch.randint(3, (count,), generator=generator)


def solvable_problem() -> tuple[Tensor, Tensor]:
    """Images, and labels that the model predicts."""
    images, _ = problem()
    return images, network()(images).argmax(dim=1)


def run(
    attack: Attack,
    model: nn.Module | None = None,
    images: Tensor | None = None,
    labels: Tensor | None = None,
    objective: Objective = cross_entropy,
    index: Tensor = INDEX,
    seed: int = 3,
) -> AttackResult:
    if images is None:
        images, labels = problem()
    return attack(model or network(), Batch(images, not_none(labels), index), objective, seed=seed)


def logit_margins(logits: Tensor, labels: Tensor) -> Tensor:
    rows = zip(logits.tolist(), labels.tolist(), strict=True)
    return torch.tensor([row[label] - max(row[:label] + row[label + 1 :]) for row, label in rows])


def is_correct(attacked: AttackResult, labels: Tensor) -> Tensor:
    return attacked.require_logits().argmax(dim=1) == labels


def test_project_to_ball_is_the_exact_projection() -> None:
    images, _ = problem()
    moved = (
        images
        + torch.randint(-80, 81, images.shape, generator=torch.Generator().manual_seed(2)) / 64
    )
    expected = torch.minimum(
        torch.maximum(moved, (images - 0.25).clamp(min=0)), (images + 0.25).clamp(max=1)
    )
    assert torch.equal(project_to_ball(images, moved, NORMS["linf"], 0.25), expected)


@pytest.mark.parametrize("name", ["linf", "l2"])
@pytest.mark.parametrize("eps", [0.0, 0.031, 8 / 255, 0.3, 2.0])
def test_project_to_ball_stays_in_the_ball_and_the_unit_range(name: str, eps: float) -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(50, 3, 8, 8, generator=generator)
    boxed = project_to_ball(
        images, images + torch.randn(images.shape, generator=generator), NORMS[name], eps
    )
    assert boxed.min() >= 0
    assert boxed.max() <= 1
    assert NORMS[name].size(boxed - images).max() <= eps + 1e-6


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("begin", ["none", "gauss", "uniform"])
def test_without_radius_the_image_comes_back_exactly(
    norm: Literal["linf", "l2"], begin: str
) -> None:
    images, labels = problem()
    attacked = run(
        Pgd(norm=norm, eps=0.0, steps=3, step=0.1, start=begin), images=images, labels=labels
    )
    assert torch.equal(attacked.images, images)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("begin", "kind", "scale"),
    [("none", "none", 0.001), ("gauss:2", "gauss", 2.0), ("uniform", "uniform", 0.001)],
)
def test_without_steps_the_start_comes_back_in_the_box(
    norm: Literal["linf", "l2"], begin: str, kind: StartKind, scale: float
) -> None:
    images, labels = problem()
    attacked = run(Pgd(norm=norm, eps=0.1, steps=0, start=begin), images=images, labels=labels)
    batch = Batch(images, labels, INDEX)
    assert torch.equal(
        attacked.images,
        start_images(kind, batch, NORMS[norm], 0.1, seed=3, scale=scale),
    )
    assert attacked.images.min() >= 0
    assert attacked.images.max() <= 1
    assert NORMS[norm].size(attacked.images - images).max() <= 0.1 + 1e-6
    assert attacked.steps_survived.tolist() == [0] * 24
    assert torch.equal(attacked.images, images) == (begin == "none")


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_image_without_gradient_is_not_moved(norm: Literal["linf", "l2"]) -> None:
    class Constant(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :3] * 0

    images, labels = problem()
    attacked = run(Pgd(norm=norm, eps=0.25, steps=3, start="none"), Constant(), images, labels)
    assert torch.equal(attacked.images, images)


@pytest.mark.parametrize("name", ["ce", "margin", "pmargin"])
def test_run_pgd_is_bit_identical_to_a_plain_loop(name: str) -> None:
    def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
        scores = logits.softmax(dim=1) if name == "pmargin" else logits
        if name == "ce":
            return functional.cross_entropy(logits, labels, reduction="sum")
        others = scores.masked_fill(functional.one_hot(labels, 3).bool(), -1e9).amax(dim=1)
        return (others - scores[torch.arange(len(labels)), labels]).sum()

    model, (images, labels) = network(), problem()
    begin = (
        images
        + torch.randint(-16, 17, images.shape, generator=torch.Generator().manual_seed(4)) / 64
    ).clamp(0, 1)
    moved = begin.clone()
    for _ in range(7):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(by_hand(model(moved), labels), moved)
        moved = moved.detach() + 5 / 64 * gradient.sign()
        moved = torch.minimum(torch.maximum(moved, images - 16 / 64), images + 16 / 64).clamp(0, 1)
    settings = PgdSettings(NORMS["linf"], eps=16 / 64, step=5 / 64, steps=7)
    batch = Batch(images, labels, INDEX)
    attacked = run_pgd(model, batch, OBJECTIVES[name], begin, settings)
    assert torch.equal(attacked.images, moved)
    assert torch.equal(attacked.require_logits(), model(moved))


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_attack_on_a_linear_model_reaches_the_optimum(
    norm: Literal["linf", "l2"], dual: int
) -> None:
    torch.manual_seed(5)
    linear = nn.Linear(16, 2)
    images, labels = torch.full((24, 1, 4, 4), 0.5), torch.arange(24) % 2
    attacked = run(
        Pgd(norm=norm, eps=0.3, steps=10, start="none"),
        nn.Sequential(nn.Flatten(), linear),
        images,
        labels,
    )
    before = logit_margins(linear(images.flatten(1)), labels)
    loss_of_margin = 0.3 * (linear.weight[0] - linear.weight[1]).norm(p=dual).item()
    assert logit_margins(attacked.require_logits(), labels).tolist() == pytest.approx(
        (before - loss_of_margin).tolist(), abs=1e-5
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["ce", "margin", "pmargin"])
def test_the_attack_raises_its_objective_for_every_image(
    norm: Literal["linf", "l2"], name: str
) -> None:
    model, objective, (images, labels) = network(), OBJECTIVES[name], solvable_problem()
    attacked = run(
        Pgd(norm=norm, eps=0.2, steps=10, start="none"), model, images, labels, objective
    )
    assert (objective(attacked.require_logits(), labels) > objective(model(images), labels)).all()


def test_parameters_get_no_gradient_and_keep_their_flags() -> None:
    model, (images, labels) = network(), problem()
    frozen = model.get_parameter("1.weight")
    frozen.requires_grad_(False)
    last = model.get_parameter("3.weight")
    last.grad = torch.ones_like(last)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    run(Pgd(steps=3), model, images, labels)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert frozen.grad is None
    assert model.get_parameter("1.bias").grad is None
    assert torch.equal(last.grad, torch.ones_like(last))


def test_given_images_are_not_changed() -> None:
    images, labels = problem()
    before = images.clone()
    attacked = run(Pgd(steps=3, eps=0.1, start="none"), images=images, labels=labels)
    assert torch.equal(images, before)
    assert not images.requires_grad
    assert not attacked.images.requires_grad
    assert not attacked.require_logits().requires_grad


def test_attack_works_under_no_grad() -> None:
    with torch.no_grad():
        without = run(Pgd(steps=3, eps=0.1))
    assert torch.equal(without.images, run(Pgd(steps=3, eps=0.1)).images)


def mixed_model() -> nn.Module:
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(norm, nn.Dropout()))
    norm.eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_evaluating_restores_the_mode_of_every_module() -> None:
    model = mixed_model()
    before = modes(model)
    with evaluating(model):
        assert not any(modes(model))
    assert modes(model) == before == [True, True, True, False, True]


def test_evaluating_restores_the_modes_after_an_error() -> None:
    model = mixed_model()
    before = modes(model)
    with pytest.raises(RuntimeError, match="in between"), evaluating(model):
        raise RuntimeError("in between")
    assert modes(model) == before


@pytest.mark.parametrize("begin", ["none", "uniform"])
def test_the_best_iterate_is_never_worse_than_the_last(begin: str) -> None:
    images, labels = solvable_problem()
    settings: dict[str, Any] = {
        "eps": 0.3,
        "steps": 6,
        "step": 0.25,
        "start": begin,
    }  # steps so long that the last is not the best
    last, best = (
        run(Pgd(**settings, keep=keep), images=images, labels=labels) for keep in ("last", "best")
    )
    margins = logit_margins(best.require_logits(), labels)
    assert (margins <= logit_margins(last.require_logits(), labels)).all()
    for steps in range(7):
        earlier = run(Pgd(**(settings | {"steps": steps})), images=images, labels=labels)
        assert (margins <= logit_margins(earlier.require_logits(), labels)).all()
    assert torch.equal(network()(best.images), best.require_logits())
    assert (margins < logit_margins(last.require_logits(), labels)).any()


def test_restarts_never_raise_a_margin_nor_the_accuracy() -> None:
    images, labels = solvable_problem()
    found = [
        run(Pgd(eps=0.2, steps=2, restarts=restarts), images=images, labels=labels)
        for restarts in (1, 2, 4, 8)
    ]
    margins = [logit_margins(attacked.require_logits(), labels) for attacked in found]
    accuracies = [is_correct(attacked, labels).float().mean().item() for attacked in found]
    assert all((more <= fewer).all() for fewer, more in itertools.pairwise(margins))
    assert accuracies == sorted(accuracies, reverse=True)
    assert (margins[-1] < margins[0]).any()


def test_steps_survived_counts_correct_iterates() -> None:
    images, labels = solvable_problem()
    attack: dict[str, Any] = {"eps": 0.4, "step": 0.05, "start": "none"}
    iterates = [run(Pgd(**attack, steps=steps), images=images, labels=labels) for steps in range(8)]
    expected = torch.stack([is_correct(iterate, labels) for iterate in iterates]).sum(dim=0)
    survived = run(Pgd(**attack, steps=8), images=images, labels=labels).steps_survived
    assert torch.equal(survived, expected)
    assert survived.min() < survived.max()
    best = run(Pgd(**attack, steps=8, keep="best"), images=images, labels=labels)
    assert torch.equal(best.steps_survived, expected)


def test_worse_case_has_the_lower_margin_and_the_later_result_at_ties() -> None:
    labels = torch.tensor([0, 0, 0])
    first = AttackResult(
        torch.zeros(3, 1, 1, 1),
        torch.tensor([4, 1, 2]),
        torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]]),
    )
    second = AttackResult(
        torch.ones(3, 1, 1, 1),
        torch.tensor([3, 2, 2]),
        torch.tensor([[2.0, 0.0], [1.0, 5.0], [9.0, 7.0]]),
    )
    picked = pick_lower_margin(first, second, labels)
    assert picked.images.flatten().tolist() == [0, 1, 1]
    assert picked.require_logits().tolist() == [[1, 0], [1, 5], [9, 7]]
    assert picked.steps_survived.tolist() == [3, 1, 2]
    assert pick_lower_margin(None, second, labels) is second


def test_misclassified_image_is_kept_at_equal_margins() -> None:
    labels = torch.tensor([1])
    misclassified = AttackResult(
        torch.zeros(1, 1, 1, 1), torch.tensor([0]), torch.tensor([[1.0, 1.0, 0.0]])
    )
    survived = AttackResult(
        torch.ones(1, 1, 1, 1), torch.tensor([0]), torch.tensor([[0.0, 1.0, 1.0]])
    )
    assert torch.equal(
        pick_lower_margin(misclassified, survived, labels).require_logits(),
        misclassified.require_logits(),
    )
    assert torch.equal(
        pick_lower_margin(survived, misclassified, labels).require_logits(),
        misclassified.require_logits(),
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("begin", ["gauss", "uniform"])
def test_attack_of_a_batch_equals_attacks_of_its_parts(
    norm: Literal["linf", "l2"], begin: str
) -> None:
    images, labels = solvable_problem()
    attack = Pgd(norm=norm, eps=0.2, steps=5, start=begin, restarts=2)
    together = run(attack, images=images, labels=labels)
    for rows in torch.randperm(24, generator=torch.Generator().manual_seed(6)).split(5):
        piece = run(attack, images=images[rows], labels=labels[rows], index=INDEX[rows])
        torch.testing.assert_close(piece.images, together.images[rows], rtol=0, atol=1e-5)
        assert torch.equal(
            piece.require_logits().argmax(dim=1), together.require_logits()[rows].argmax(dim=1)
        )
        assert torch.equal(piece.steps_survived, together.steps_survived[rows])


def test_unknown_kind_of_start_is_an_error() -> None:
    images, labels = problem()
    kind: Any = "unifrom"
    with pytest.raises(ValueError, match="unifrom"):
        start_images(kind, Batch(images, labels, INDEX), NORMS["linf"], 0.2, seed=0)


@pytest.mark.parametrize("name", ["linf", "l2"])
def test_random_start_is_in_the_eps_ball_and_depends_on_seed_and_restart(name: str) -> None:
    images, labels = problem()
    starts = [
        start_images(
            "uniform", Batch(images, labels, INDEX), NORMS[name], 0.2, seed=seed, restart=restart
        )
        for seed in (0, 1)
        for restart in (0, 1)
    ]
    assert len({tuple(begin.flatten().tolist()) for begin in starts}) == 4
    for begin in starts:
        assert NORMS[name].size(begin - images).max() <= 0.2 + 1e-6
        assert begin.min() >= 0
        assert begin.max() <= 1
