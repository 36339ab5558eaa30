"""Built-in attacks beyond their contract: hand-computed cases, bounds, weights, remarks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from wmr_cli.builtins.attacks.apgd import Apgd, TargetedApgd
from wmr_cli.builtins.attacks.authors_eval import AuthorsEval
from wmr_cli.builtins.attacks.autoattack import AutoAttack
from wmr_cli.builtins.attacks.fab_targeted import TargetedFab
from wmr_cli.builtins.attacks.noise import Noise
from wmr_cli.builtins.attacks.pgd import Fgsm, Pgd
from wmr_cli.builtins.attacks.square import Square
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.core import rng
from wmr_cli.core.contexts import watch_parts
from wmr_cli.core.losses import cross_entropy, get_objective, weighted_objective
from wmr_cli.core.norms import NORMS
from wmr_cli.core.protocols import Attack, AttackResult, Batch, Evidence, Objective
from wmr_cli.errors import BadInput, UnknownName
from wmr_cli.registry import Registry
from wmr_cli.testing import tiny_batch, tiny_model

INDEX = torch.arange(100, 140)


def network(classes: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, classes))


def problem(count: int = 40, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Return images, and labels that the network predicts."""
    images = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return images, network(classes)(images).argmax(dim=1)


def run(
    attack: Attack,
    model: nn.Module | None = None,
    objective: Objective = cross_entropy,
    seed: int = 3,
) -> AttackResult:
    images, labels = problem()
    return attack(model or network(), Batch(images, labels, INDEX), objective, seed=seed)


def accuracy(attacked: AttackResult, labels: Tensor) -> float:
    return (attacked.require_logits().argmax(dim=1) == labels).float().mean().item()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_attack_is_stronger_than_noise(norm: Literal["linf", "l2"]) -> None:
    eps, (_, labels) = 0.06 if norm == "linf" else 0.4, problem()
    floor = accuracy(run(Noise(norm, eps)), labels)
    attacks: list[Attack] = [
        Pgd(norm, eps),
        Apgd(norm, eps, 20),
        TargetedApgd(norm, eps, 10),
        TargetedFab(norm, eps, 20),
        Square(norm, eps, 300),
        AutoAttack(norm, eps, 20, version="rand", eot=2),
    ]
    found = [
        accuracy(run(attack, objective=get_objective(attack.traits.objective)), labels)
        for attack in attacks
    ]
    assert max(found) < floor
    assert accuracy(run(Noise(norm, eps, restarts=50)), labels) <= floor


def test_noise_returns_the_strongest_sample() -> None:
    images, labels = problem()
    draws = [
        (images + NORMS["linf"].random(images, 0.1, INDEX, 3, restart)).clamp(0, 1)
        for restart in range(4)
    ]
    values = torch.stack([cross_entropy(network()(moved), labels) for moved in draws])
    succeeds = torch.stack([network()(moved).argmax(dim=1) != labels for moved in draws])
    best = torch.where(succeeds, values + 1000, values).argmax(dim=0)
    torch.testing.assert_close(
        run(Noise(eps=0.1, restarts=4)).images, torch.stack(draws)[best, torch.arange(40)]
    )


def test_the_authors_evaluation_agrees_with_a_hand_computed_case() -> None:
    """Chain starts without projection; keep final iterates by cross-entropy, clean ones at 0."""
    model, (images, labels) = network(), problem()
    current, kept, highest = images, images, torch.zeros(40)
    left_the_box = False
    for restart in range(3):
        current = current + 0.1 * (2 * rng.uniform(images, INDEX, 3, restart) - 1)
        left_the_box |= bool((current < 0).any()) and bool(((current - images).abs() > 0.1).any())
        for _ in range(4):
            moved = current.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(
                functional.cross_entropy(model(moved), labels, reduction="sum"), moved
            )
            moved = current + 0.02 * gradient.sign()
            current = torch.minimum(torch.maximum(moved, images - 0.1), images + 0.1).clamp(0, 1)
        value = functional.cross_entropy(model(current), labels, reduction="none").detach()
        kept = torch.where((value >= highest)[:, None, None, None], current, kept)
        highest = torch.maximum(value, highest)
    assert left_the_box, "a chained start goes beyond the ball and the unit range"
    attacked = run(AuthorsEval(eps=0.1, steps=4, step=0.02, restarts=3))
    torch.testing.assert_close(attacked.images, kept, atol=1e-6, rtol=0)
    torch.testing.assert_close(attacked.logits, model(kept))


def test_the_authors_evaluation_selects_by_the_unweighted_loss() -> None:
    weighted = weighted_objective("ce", Exponential(5.0))
    _, labels = problem()
    alone = [
        run(AuthorsEval(eps=0.1, steps=2, restarts=restarts), objective=weighted)
        for restarts in (1, 2, 3)
    ]
    values = [cross_entropy(attacked.require_logits(), labels) for attacked in alone]
    assert (values[1] >= values[0]).all()
    assert (values[2] >= values[1]).all()


def test_the_authors_evaluation_with_margin_returns_survivors_clean() -> None:
    images, labels = problem()
    attacked = run(
        AuthorsEval(eps=0.03, steps=3, restarts=2, loss="margin"),
        objective=get_objective("margin"),
    )
    survives = attacked.require_logits().argmax(dim=1) == labels
    assert 0 < survives.sum() < 40
    assert torch.equal(attacked.images[survives], images[survives])
    assert (attacked.images[~survives] != images[~survives]).flatten(1).any(dim=1).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fab_finds_the_boundary_of_a_linear_network(norm: Literal["linf", "l2"]) -> None:
    torch.manual_seed(2)
    linear = nn.Linear(64, 3)
    model = nn.Sequential(nn.Flatten(), linear)
    images = 0.5 + 0.05 * torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    labels = model(images).argmax(dim=1)
    logits = model(images)
    dual = 1 if norm == "linf" else 2
    distances = torch.full((40, 3), torch.inf)
    for row, label in enumerate(labels.tolist()):
        for other in set(range(3)) - {label}:
            gap = logits[row, label] - logits[row, other]
            gradient = linear.weight[label] - linear.weight[other]
            distances[row, other] = (gap / gradient.norm(p=dual)).item()
    nearest = distances.amin(dim=1)
    eps = float(nearest.median())
    attacked = TargetedFab(norm, eps, 30)(
        model, Batch(images, labels, INDEX), cross_entropy, seed=0
    )
    is_misclassified = attacked.require_logits().argmax(dim=1) != labels
    # the final step overshoots the boundary a little
    assert is_misclassified[nearest < 0.98 * eps].all()
    assert not is_misclassified[nearest > eps].any()
    assert 0 < is_misclassified.sum() < 40
    assert torch.equal(attacked.images[~is_misclassified], images[~is_misclassified])
    assert (NORMS[norm].size(attacked.images - images) <= eps).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", [Apgd, Square], ids=["apgd", "square"])
def test_the_weighted_attack_raises_weight_times_loss_above_the_unweighted_one(
    attack: type[Apgd | Square], norm: Literal["linf", "l2"]
) -> None:
    kernel, (_, labels) = Exponential(5.0), problem()
    made = attack(norm, 0.05 if norm == "linf" else 0.3, 200 if attack is Square else 30, loss="ce")
    weighted = weighted_objective("ce", kernel)

    def weighted_loss(attacked: AttackResult) -> float:
        logits = attacked.require_logits().double()
        return (
            (kernel(Evidence(logits, labels)).exp() * cross_entropy(logits, labels)).mean().item()
        )

    plain, crafted = run(made), run(made, objective=weighted)
    assert weighted_loss(crafted) > weighted_loss(plain)


@pytest.mark.parametrize(
    "attack",
    [Apgd(eps=0.1, steps=12), Square(eps=0.1, queries=80, loss="ce")],
    ids=["apgd", "square"],
)
def test_weighted_by_alpha_zero_is_unweighted(attack: Attack) -> None:
    plain, weighted = run(attack), run(attack, objective=weighted_objective("ce", Exponential(0.0)))
    assert torch.equal(plain.images, weighted.images)


class WithoutGradients(nn.Module):
    """Fails if a gradient is computed; counts its calls and images."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.images = network(), 0, 0

    def forward(self, images: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.calls += 1
        self.images += len(images)
        result: Tensor = self.inner(images)
        return result


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_square_uses_the_given_number_of_queries_and_no_gradients(
    norm: Literal["linf", "l2"],
) -> None:
    model = WithoutGradients()
    run(Square(norm, 0.02, queries=230), model)
    assert model.calls == 230
    run(Noise(norm, 0.02, restarts=4), model)
    assert model.calls == 234


@pytest.mark.parametrize("p_init", [1.0, 0.8])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_square_without_edges_stays_in_the_ball_and_is_weaker(
    norm: Literal["linf", "l2"], p_init: float
) -> None:
    eps, (images, labels) = 0.04 if norm == "linf" else 0.25, problem()
    inner, whole = (
        run(Square(norm, eps, 300, p_init=p_init, edges=edges), objective=get_objective("margin"))
        for edges in (False, True)
    )
    assert (NORMS[norm].size(inner.images - images) <= eps + 1e-6).all()
    assert accuracy(whole, labels) < accuracy(inner, labels) < 1


def test_square_without_edges_keeps_the_last_row_and_column_of_its_first_guess() -> None:
    first, last = (
        run(Square(eps=0.05, queries=queries, edges=False)).images for queries in (1, 300)
    )
    assert torch.equal(first[:, :, -1], last[:, :, -1])
    assert torch.equal(first[..., -1], last[..., -1])
    assert not torch.equal(first, last)


def test_square_that_stops_early_does_not_change_misclassified_images() -> None:
    _, labels = problem()
    patient, hasty = WithoutGradients(), WithoutGradients()
    margin = get_objective("margin")
    whole = run(Square(eps=0.05, queries=350), patient, margin)
    early = run(Square(eps=0.05, queries=350, stops_early=True), hasty, margin)
    assert torch.equal(
        whole.require_logits().argmax(dim=1) == labels,
        early.require_logits().argmax(dim=1) == labels,
    )
    assert 0 < accuracy(whole, labels) < 1
    assert hasty.images < patient.images


@pytest.mark.parametrize(
    ("attack", "few"),
    [
        (Apgd(), 0),
        (Apgd(loss="dlr"), 3),
        (TargetedApgd(), 4),
        (AutoAttack(), 4),
        (AutoAttack(attacks=("apgd-dlr", "square")), 3),
    ],
)
def test_an_attack_remarks_on_too_few_classes_for_its_loss(
    attack: Apgd | TargetedApgd | AutoAttack, few: int
) -> None:
    for classes in (2, 3, 4, 10):
        remarks = list(attack.remarks(classes))
        assert bool(remarks) == (classes < few)
        assert all(f"with {classes} the attack maximises" in remark for remark in remarks)


def test_autoattack_runs_the_chosen_parts(registry: Registry) -> None:
    made = registry.create("attack", "autoattack:attacks=apgd-ce:square,queries=7,eps=0.1")
    assert made.parts() == [
        Apgd("linf", 0.1, stops_early=True),
        Square("linf", 0.1, 7, stops_early=True),
    ]
    with pytest.raises(UnknownName, match="no part 'apgd-tt'"):
        AutoAttack(attacks=("apgd-tt",))
    with pytest.raises(BadInput):
        AutoAttack(attacks=())


def test_autoattack_reports_each_part_with_the_images_that_are_left() -> None:
    images, labels = problem()
    # misclassified without an attack
    labels[:5] = (labels[:5] + 1) % 4
    batch = Batch(images, labels, INDEX)
    first = AutoAttack(eps=0.05, steps=5, attacks=("apgd-ce",))
    logits = first(network(), batch, cross_entropy, seed=3).require_logits()
    left = int((logits.argmax(dim=1) == labels).sum())
    assert 0 < left < 35
    seen: list[tuple[str, int, int]] = []
    with watch_parts(lambda *part: seen.append(part)):
        both = replace(first, attacks=("apgd-ce", "square"), queries=20)
        both(network(), batch, cross_entropy, seed=3)
    assert seen == [("apgd-ce", 35, 40), ("square", left, 40)]


def test_the_random_version_runs_both_losses_with_20_draws_and_all_steps(
    registry: Registry,
) -> None:
    made = registry.create("attack", "autoattack:version=rand,eps=0.1")
    assert made.parts() == [Apgd("linf", 0.1, eot=20), Apgd("linf", 0.1, loss="dlr", eot=20)]
    assert made.traits.eot == 20
    assert replace(made, eot=5).traits.eot == 5
    assert AutoAttack(eot=3).traits.eot == 3
    assert {part.traits.eot for part in AutoAttack(eot=3).parts()} == {1, 3}
    with pytest.raises(BadInput, match="attacks"):
        AutoAttack(version="rand", attacks=("square",))


class SwitchedNetwork(nn.Module):
    """A network that predicts class 0 in the passes of these numbers, and class 1 in others."""

    def __init__(self, zeros: set[int]) -> None:
        super().__init__()
        self.zeros = zeros
        self.passes = 0

    def forward(self, images: Tensor) -> Tensor:
        scores = images.flatten(1).sum(dim=1)
        sign = 1 if self.passes in self.zeros else -1
        self.passes += 1
        return torch.stack([sign * (100 + scores), scores * 0, scores * 0 - 200], dim=1)


@pytest.mark.parametrize(
    ("zeros", "survives"),
    [
        # correct at first, misclassified in the attack, correct in the pass that decides: twice
        ({0, 5, 10}, True),
        ({0, 5}, False),
        ({0, 10}, False),
    ],
)
def test_the_random_version_decides_by_a_pass_after_each_attack(
    zeros: set[int], survives: bool
) -> None:
    model = SwitchedNetwork(zeros)
    attack = AutoAttack(eps=0.1, steps=1, version="rand", eot=2)
    batch = Batch(torch.full((1, 1, 2, 2), 0.5), torch.tensor([0]), torch.tensor([0]))
    # a pass per draw at the start and after the step, twice, and one that decides
    result = attack(model, batch, cross_entropy, seed=0)
    assert bool(result.require_logits().argmax() == 0) == survives


@pytest.mark.parametrize("attack", [Pgd(steps=0, eot=4), AutoAttack(eot=4, attacks=("apgd-ce",))])
def test_an_attack_scores_images_by_the_mean_of_its_draws(attack: Attack) -> None:
    # class 0 in one of four passes
    model = SwitchedNetwork(set(range(0, 4000, 4)))
    images = torch.full((1, 1, 2, 2), 0.5)
    result = attack(
        model, Batch(images, torch.tensor([0]), torch.tensor([0])), cross_entropy, seed=0
    )
    probabilities = result.require_logits().softmax(dim=1)
    torch.testing.assert_close(probabilities, torch.tensor([[0.25, 0.75, 0.0]]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Apgd(eps=-1.0), lambda: Apgd(restarts=0), lambda: Apgd(loss="cee"),
        lambda: TargetedApgd(targets=0), lambda: TargetedFab(steps=-1),
        lambda: TargetedFab(eta=0.5), lambda: Square(queries=0), lambda: Square(p_init=0.0),
        lambda: Noise(restarts=0), lambda: AuthorsEval(steps=0), lambda: AutoAttack(eps=-1.0),
        lambda: Pgd(eot=0),
        lambda: Fgsm(eot=0),
        lambda: Apgd(eot=0),
        lambda: TargetedApgd(eot=0),
        lambda: TargetedFab(eot=0),
        lambda: AuthorsEval(eot=0),
        lambda: AutoAttack(eot=0),
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(BadInput):
        make()


def test_attacks_that_stop_early_return_misclassified_images_clean() -> None:
    model, batch = tiny_model(), tiny_batch()
    wrong = (model(batch.images).argmax(dim=1) + 1) % 4
    for attack in (
        TargetedApgd(eps=0.1, steps=3),
        TargetedFab(eps=0.1, steps=3),
        AutoAttack(eps=0.1, steps=3, queries=5),
    ):
        attacked = attack(model, replace(batch, labels=wrong), cross_entropy, seed=0)
        assert torch.equal(attacked.images, batch.images)
