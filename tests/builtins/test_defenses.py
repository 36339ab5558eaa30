"""The loss of every defense, compared with sums in plain Python, and the state of some."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from support.typed import instance_of, not_none
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.defenses.combined import LogitPairing
from wmr_cli.builtins.defenses.free import Free
from wmr_cli.builtins.defenses.iaat import InstanceAdaptive
from wmr_cli.builtins.defenses.pgd import FastTraining
from wmr_cli.builtins.defenses.trades import Trades
from wmr_cli.builtins.defenses.yopo import Yopo, find_first_layer
from wmr_cli.builtins.kernels.exp import Exponential, Uniform
from wmr_cli.config import TrainConfig
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.norms import NORMS
from wmr_cli.core.protocols import Attack, AttackResult, Batch, Defense, Kernel, Objective
from wmr_cli.core.traits import AttackTraits
from wmr_cli.errors import BadInput, BrokenContract
from wmr_cli.registry import Registry
from wmr_cli.runtime import fabric as devices
from wmr_cli.testing import RecordingLearner, tiny_batch, tiny_model
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.optimization import StepSettings

# three classes from two pixels: a row of weights per class, then their biases
THETA = [1.5, -2.0, -1.0, 2.5, 0.5, 0.25, 0.1, -0.3, 0.2]
IMAGES = [[0.2, 0.7], [0.75, 0.2], [0.85, 0.2]]
MOVED = [[0.24, 0.66], [0.66, 0.28], [0.8, 0.24]]
LABELS = [1, 0, 2]
"""Correct; correct until attacked; misclassified without an attack."""
SURVIVED = [2, 1, 3]
LR = 0.1
EPS = 0.05
ALPHA = 2.0


def logits(theta: list[float], pixels: list[float]) -> list[float]:
    return [
        theta[2 * c] * pixels[0] + theta[2 * c + 1] * pixels[1] + theta[6 + c] for c in range(3)
    ]


def softmax(z: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in z)
    return [math.exp(value) / total for value in z]


def ce(z: list[float], y: int) -> float:
    return -math.log(softmax(z)[y])


def kl(z: list[float], a: list[float]) -> float:
    return sum(p * (math.log(p) - math.log(q)) for p, q in zip(softmax(z), softmax(a), strict=True))


def margin(z: list[float], y: int) -> float:
    p = softmax(z)
    return p[y] - max(p[c] for c in range(3) if c != y)


def boosted_ce(a: list[float], y: int) -> float:
    return ce(a, y) - math.log(1.0001 - max(softmax(a)[c] for c in range(3) if c != y) + 1e-12)


def true_class_error(z: list[float], y: int) -> float:
    return 1.0000001 - softmax(z)[y]


def mean_squared_difference(z: list[float], a: list[float]) -> float:
    return sum((first - second) ** 2 for first, second in zip(z, a, strict=True)) / 3


WeightFunction = Callable[[list[float]], float]
LOSS_FORMULAS: dict[str, Callable[[list[float], list[float], int, WeightFunction], float]] = {
    "natural": lambda z, a, y, w: w(z) * ce(z, y),
    "pgd": lambda z, a, y, w: w(a) * ce(a, y),
    "trades": lambda z, a, y, w: ce(z, y) + 6 * w(a) * kl(z, a),
    "trades:beta=3,climbs=ce": lambda z, a, y, w: ce(z, y) + 3 * w(a) * kl(z, a),
    "trades:beta=3,terms=nat": lambda z, a, y, w: w(a) * ce(z, y) + 3 * kl(z, a),
    "trades:beta=3,terms=both": lambda z, a, y, w: w(a) * (ce(z, y) + 3 * kl(z, a)),
    "trades:beta=3,terms=none": lambda z, a, y, w: ce(z, y) + 3 * kl(z, a),
    "combined": lambda z, a, y, w: (ce(z, y) + w(a) * ce(a, y)) / 2,
    "combined:lam=3": lambda z, a, y, w: (ce(z, y) + 3 * w(a) * ce(a, y)) / 4,
    "combined:lam=3,rescale=false": lambda z, a, y, w: ce(z, y) + 3 * w(a) * ce(a, y),
    "alp": lambda z, a, y, w: (
        (ce(z, y) + w(a) * ce(a, y)) / 2 + 0.5 * mean_squared_difference(z, a)
    ),
    "alp:lam=7,labels=true": lambda z, a, y, w: (
        (ce(z, y) + w(a) * ce(a, y)) / 2 + 7 * mean_squared_difference(z, a)
    ),
    "mart": lambda z, a, y, w: w(a) * boosted_ce(a, y) + 5 * true_class_error(z, y) * kl(z, a),
    "mart:lam=2,terms=kl": lambda z, a, y, w: (
        boosted_ce(a, y) + 2 * w(a) * true_class_error(z, y) * kl(z, a)
    ),
    "mart:lam=2,terms=both": lambda z, a, y, w: (
        w(a) * (boosted_ce(a, y) + 2 * true_class_error(z, y) * kl(z, a))
    ),
    "mart:lam=2,terms=none": lambda z, a, y, w: (
        boosted_ce(a, y) + 2 * true_class_error(z, y) * kl(z, a)
    ),
}
"""Loss of an image of class y, from clean logits z, adversarial logits a, and weights of both."""


def weight_function(y: int, alpha: float) -> WeightFunction:
    return lambda z: math.exp(-alpha * margin(z, y))


def numerical_gradient(
    function: Callable[..., Any], point: list[float], step: float = 1e-5
) -> list[float]:
    """Compute central differences of a function of a list of numbers."""

    def moved(place: int, by: float) -> list[float]:
        return [value + by * (place == other) for other, value in enumerate(point)]

    return [
        (function(moved(place, step)) - function(moved(place, -step))) / (2 * step)
        for place in range(len(point))
    ]


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def sign_step(
    start: list[float],
    image: list[float],
    gradient: list[float],
    step_size: float,
    eps: float = EPS,
) -> list[float]:
    """Take one signed step from `start`, projected into the ε-ball and into [0, 1]."""
    moved = (
        clip(s + step_size * sign(g) - x, -eps, eps) + x
        for s, x, g in zip(start, image, gradient, strict=True)
    )
    return [clip(pixel, 0, 1) for pixel in moved]


def batch(
    pixels: list[list[float]] = IMAGES,
    labels: list[int] = LABELS,
    index: list[int] | range | tuple[int, int, int] = (10, 11, 12),
) -> Batch:
    images = torch.tensor(pixels, dtype=torch.float64).reshape(-1, 1, 1, 2)
    return Batch(images, torch.tensor(labels), torch.tensor(index))


def pixels_of(images: Tensor) -> list[list[float]]:
    return images.detach().flatten(1).tolist()


def network() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3)).double()
    nn.utils.vector_to_parameters(torch.tensor(THETA, dtype=torch.float64), model.parameters())
    return model


def theta_of(model: nn.Module) -> list[float]:
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


class Learner(RecordingLearner):
    """SGD on the linear network. Its attack moves three images to known places.

    A defense's own attack is run as it is.
    """

    def __init__(self, kernel: Kernel | None = None, model: nn.Module | None = None) -> None:
        super().__init__(network() if model is None else model, kernel)
        self.attack_calls: list[Any] = []
        self.own_attacks: list[Any] = []
        self.forwarded: list[Any] = []

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        self.attack_calls.append((batch.labels.tolist(), objective))
        self.own_attacks.append(own)
        if own is not None:
            return super().attack(batch, objective, own)
        images = torch.tensor(MOVED, dtype=torch.float64).reshape(3, 1, 1, 2)
        return AttackResult(images, torch.tensor(SURVIVED))

    def forward(self, images: Tensor) -> Tensor:
        self.forwarded.append(pixels_of(images))
        return super().forward(images)


def test_the_three_images_are_correct_attacked_and_misclassified() -> None:
    found = [
        [max(range(3), key=logits(THETA, pixels).__getitem__) for pixels in images]
        for images in (IMAGES, MOVED)
    ]
    assert found[0] == [1, 0, 0]
    assert found[1] == [1, 2, 0]
    assert LABELS == [1, 0, 2]


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
@pytest.mark.parametrize("spec", LOSS_FORMULAS)
def test_losses_follow_the_formula_and_the_step_its_gradient(
    spec: str, alpha: float, registry: Registry
) -> None:
    def losses(theta: list[float]) -> list[float]:
        triples = zip(IMAGES, MOVED, LABELS, strict=True)
        return [
            LOSS_FORMULAS[spec](
                logits(theta, x), logits(theta, moved), y, weight_function(y, alpha)
            )
            for x, moved, y in triples
        ]

    learner = Learner(Exponential(alpha))
    report = registry.create("defense", spec).step(learner, batch())
    inputs = IMAGES if spec == "natural" else MOVED
    weights = [
        weight_function(y, alpha)(logits(THETA, pixels))
        for pixels, y in zip(inputs, LABELS, strict=True)
    ]
    assert report.losses.tolist() == pytest.approx(losses(THETA), rel=1e-9)
    assert learner.losses == pytest.approx([sum(losses(THETA)) / 3], rel=1e-9)
    assert report.weights.tolist() == pytest.approx(weights, rel=1e-9)
    assert report.margins.tolist() == pytest.approx(
        [margin(logits(THETA, pixels), y) for pixels, y in zip(inputs, LABELS, strict=True)]
    )
    gradient = numerical_gradient(lambda theta: sum(losses(theta)) / 3, THETA)
    expected = [old - LR * partial for old, partial in zip(THETA, gradient, strict=True)]
    assert theta_of(learner.model) == pytest.approx(expected, abs=1e-8)
    assert learner.steps == 1


@pytest.mark.parametrize("spec", [spec for spec in LOSS_FORMULAS if spec != "natural"])
def test_the_attack_maximises_the_objective_of_the_defense(spec: str, registry: Registry) -> None:
    learner = Learner()
    registry.create("defense", spec).step(learner, batch())
    ((labels, objective),) = learner.attack_calls
    # with predicted labels the third image is attacked away from its predicted class
    assert labels == ([1, 0, 0] if spec == "alp" else LABELS)
    attacked = torch.tensor([logits(THETA, pixels) for pixels in MOVED], dtype=torch.float64)
    values = objective(attacked, torch.tensor(labels)).tolist()
    clean, moved = ([logits(THETA, pixels) for pixels in images] for images in (IMAGES, MOVED))
    if spec.startswith("trades") and "climbs=ce" not in spec:
        assert values == pytest.approx(
            [kl(z, a) for z, a in zip(clean, moved, strict=True)], rel=1e-9
        )
    else:
        assert values == pytest.approx(
            [ce(a, y) for a, y in zip(moved, labels, strict=True)], rel=1e-9
        )


def test_logit_pairing_can_attack_the_true_labels() -> None:
    learner = Learner()
    LogitPairing(labels="true").step(learner, batch())
    assert learner.attack_calls[0][0] == LABELS


def test_logit_pairing_counts_no_step_for_a_misclassified_image() -> None:
    """Its attack counts steps with an unchanged prediction, correct or not."""
    cases = ((LogitPairing(labels="predicted"), [2, 1, 0]), (LogitPairing(labels="true"), SURVIVED))
    for defense, expected in cases:
        learner = Learner()
        defense.step(learner, batch())
        assert not_none(learner.evidence[0].steps_survived).tolist() == expected


@pytest.mark.parametrize(
    "name",
    [
        "alp",
        "combined",
        "fgsm-rs",
        "free:m=1",
        "iaat",
        "mart",
        "natural",
        "pgd",
        "trades",
        "yopo:m=1",
    ],
)
def test_a_defense_provides_exactly_the_declared_evidence(name: str, registry: Registry) -> None:
    learner = Learner()
    defense = registry.create("defense", name)
    defense.step(learner, batch())
    (evidence,) = learner.evidence
    assert not_none(evidence.index).tolist() == [10, 11, 12]
    assert evidence.labels.tolist() == LABELS
    assert evidence.loss is not None
    for field in ("clean_logits", "steps_survived"):
        assert (getattr(evidence, field) is not None) == (field in defense.traits.provides)
    assert any(own is None for own in learner.own_attacks) == defense.traits.uses_attack


def test_fast_training_takes_one_step_from_a_random_start() -> None:
    learner = Learner(Exponential(ALPHA))
    visited = []
    learner.model.register_forward_pre_hook(lambda model, args: visited.append(pixels_of(args[0])))
    report = FastTraining(reach=0.9).step(learner, batch())
    start = visited[0]
    found = learner.forwarded[0]
    assert all(
        0 < abs(s - x) <= EPS
        for row, image in zip(start, IMAGES, strict=True)
        for s, x in zip(row, image, strict=True)
    )
    expected = []
    for begin, image, y in zip(start, IMAGES, LABELS, strict=True):
        gradient = numerical_gradient(lambda pixels, y=y: ce(logits(THETA, pixels), y), begin)
        expected.append(sign_step(begin, image, gradient, 0.9 * EPS))
    assert [pixel for row in found for pixel in row] == pytest.approx(
        [pixel for row in expected for pixel in row], abs=1e-12
    )
    attacked = [logits(THETA, pixels) for pixels in expected]
    losses_by_hand = [
        weight_function(y, ALPHA)(a) * ce(a, y) for a, y in zip(attacked, LABELS, strict=True)
    ]
    assert report.losses.tolist() == pytest.approx(losses_by_hand, rel=1e-9)
    assert learner.losses == pytest.approx([sum(losses_by_hand) / 3], rel=1e-9)


# free


def perturbed_losses(
    theta: list[float],
    delta: list[float],
    pixels: list[list[float]],
    labels: list[int],
    alpha: float,
) -> list[float]:
    """Return the losses of images moved by delta, two numbers per image in one list."""
    losses_by_hand = []
    for row, (image, y) in enumerate(zip(pixels, labels, strict=True)):
        z = logits(theta, [clip(image[k] + delta[2 * row + k], 0, 1) for k in (0, 1)])
        losses_by_hand.append(weight_function(y, alpha)(z) * ce(z, y))
    return losses_by_hand


def replay_by_hand(
    theta: list[float],
    delta: list[float],
    pixels: list[list[float]],
    labels: list[int],
    alpha: float,
) -> tuple[list[float], list[float], list[float]]:
    """Return the losses of one pass, and the updated parameters and perturbation."""

    def losses(theta: list[float], delta: list[float]) -> list[float]:
        return perturbed_losses(theta, delta, pixels, labels, alpha)

    losses_by_hand = losses(theta, delta)
    theta_gradient = numerical_gradient(
        lambda other: sum(losses(other, delta)) / len(losses_by_hand), theta
    )
    delta_gradient = numerical_gradient(lambda other: sum(losses(theta, other)), delta)
    new_theta = [value - LR * g for value, g in zip(theta, theta_gradient, strict=True)]
    new_delta = [
        clip(value + EPS * sign(g), -EPS, EPS)
        for value, g in zip(delta, delta_gradient, strict=True)
    ]
    return losses_by_hand, new_theta, new_delta


def free_by_hand(
    rounds: list[tuple[list[Any], list[int]]], replays: int, alpha: float
) -> tuple[list[float], dict[int, list[float]], list[list[float]]]:
    """Return the final parameters, all perturbations, and the losses of each last replay."""
    theta = THETA
    deltas: dict[int, list[float]] = {}
    last_losses: list[list[float]] = []
    for pixels, labels in rounds:
        delta = [value for row in range(len(pixels)) for value in deltas.get(row, [0.0, 0.0])]
        for _ in range(replays):
            losses_by_hand, theta, delta = replay_by_hand(theta, delta, pixels, labels, alpha)
        deltas.update({row: delta[2 * row : 2 * row + 2] for row in range(len(pixels))})
        last_losses.append(losses_by_hand)
    return theta, deltas, last_losses


@pytest.mark.parametrize("replays", [1, 3])
@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_free_training_updates_images_and_parameters_by_one_gradient(
    replays: int, alpha: float
) -> None:
    short = ([[0.5, 0.5], [0.3, 0.4]], [2, 1])
    # 0.97 + eps is beyond 1
    longer = ([[0.4, 0.6], [0.97, 0.3], [0.5, 0.1], [0.7, 0.7]], [0, 0, 1, 2])
    rounds = [(IMAGES, LABELS), short, longer, (IMAGES, LABELS)]
    learner = Learner(Exponential(alpha))
    defense = Free(m=replays)
    perturbations = []
    losses = []
    for pixels, labels in rounds:
        report = defense.step(learner, batch(pixels, labels, range(len(labels))))
        losses.append(report.losses.tolist())
        perturbations.append(pixels_of(defense.state()["perturbation"]))
    assert learner.steps == 4 * replays
    for done in range(1, 5):
        theta, by_hand, losses_by_hand = free_by_hand(rounds[:done], replays, alpha)
        assert losses[:done] == [pytest.approx(row, rel=1e-6) for row in losses_by_hand]
        assert perturbations[done - 1] == [
            pytest.approx(by_hand[row], abs=1e-12) for row in sorted(by_hand)
        ]
    assert theta_of(learner.model) == pytest.approx(theta, abs=1e-7)
    assert [len(rows) for rows in perturbations] == [3, 3, 4, 4]
    # a short batch uses the first rows and leaves the others
    assert perturbations[1][2] == perturbations[0][2]
    assert all(abs(value) <= EPS for rows in perturbations for row in rows for value in row)


def test_the_first_step_of_free_training_is_on_clean_images_and_moves_by_eps() -> None:
    learner = Learner()
    defense = Free(m=1)
    report = defense.step(learner, batch())
    assert report.losses.tolist() == pytest.approx(
        [ce(logits(THETA, x), y) for x, y in zip(IMAGES, LABELS, strict=True)]
    )
    expected = []
    for x, y in zip(IMAGES, LABELS, strict=True):
        gradient = numerical_gradient(lambda pixels, y=y: ce(logits(THETA, pixels), y), x)
        expected.append([EPS * sign(g) for g in gradient])
    assert pixels_of(defense.state()["perturbation"]) == expected


def test_free_training_resumes_from_its_stored_perturbation() -> None:
    learner = Learner()
    defense = Free(m=2)
    assert defense.state() == {}
    defense.step(learner, batch())
    stored = {name: tensor.clone() for name, tensor in defense.state().items()}
    resumed = Free(m=2)
    resumed.load_state(stored)
    resumed_learner = Learner(model=network())
    resumed_learner.model.load_state_dict(learner.model.state_dict())
    straight_report = defense.step(learner, batch())
    resumed_report = resumed.step(resumed_learner, batch())
    assert torch.equal(straight_report.losses, resumed_report.losses)
    assert torch.equal(defense.state()["perturbation"], resumed.state()["perturbation"])


class Overflowing(Learner):
    """Overflows a scaled loss in half precision; the optimizer then skips its step."""

    def backward(self, loss: Tensor) -> None:
        (loss * math.nan).backward()

    def optimizer_step(self) -> None:
        self.model.zero_grad()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_overflowing_gradient_does_not_move_the_perturbation(norm: str) -> None:
    learner = Overflowing()
    defense = Free(m=2)
    learner.norm = NORMS[norm]
    defense.step(learner, batch())
    assert pixels_of(defense.state()["perturbation"]) == [[0.0, 0.0]] * 3


# yopo


def two_layers() -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    return instance_of(nn.Sequential, model.double())


def weighted_ce(z: Tensor, labels: Tensor, alpha: float) -> Tensor:
    p = z.softmax(dim=1)
    true = p.gather(1, labels[:, None]).squeeze(1)
    best_other = p.masked_fill(nn.functional.one_hot(labels, 3).bool(), -1).amax(dim=1)
    return -torch.exp(-alpha * (true - best_other)) * true.log()


def yopo_by_hand(
    start: list[list[float]], on: Batch, m: int, n: int, sigma: float, alpha: float, legacy: bool
) -> tuple[list[list[Any]], Tensor, list[Tensor]]:
    """Return the images of each pass, the last losses, and the gradients of both layers."""
    model = two_layers()
    first = model.get_parameter("1.weight")
    first_bias = model.get_parameter("1.bias")
    last = model.get_parameter("3.weight")
    last_bias = model.get_parameter("3.bias")
    gradients = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}
    x = torch.tensor(start, dtype=torch.float64)
    images = on.images.flatten(1)
    passes = []
    for _ in range(m):
        passes.append(x.tolist())
        hidden = (x @ first.T + first_bias).detach().requires_grad_()
        losses = weighted_ce(hidden.tanh() @ last.T + last_bias, on.labels, alpha)
        p, d_last, d_last_bias = torch.autograd.grad(losses.mean(), [hidden, last, last_bias])
        if legacy:
            gradients[first] += p.T @ x
            gradients[first_bias] += p.sum(dim=0)
        for _ in range(n):
            x = x + sigma * EPS * torch.sign(p @ first.detach())
            x = torch.minimum(torch.maximum(x, images - EPS), images + EPS).clamp(0, 1)
        gradients[first] += p.T @ x
        gradients[first_bias] += p.sum(dim=0)
        gradients[last] += d_last
        gradients[last_bias] += d_last_bias
    return passes, losses, [(old - LR * gradients[old]).detach() for old in model.parameters()]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("alpha", [0.0, ALPHA])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 3), (3, 1), (5, 3)])
def test_yopo_uses_moved_images_for_the_first_layer_and_its_passes_for_the_others(
    m: int, n: int, alpha: float, legacy: bool
) -> None:
    learner = Learner(Exponential(alpha), two_layers())
    report = Yopo(m=m, n=n, sigma=0.6, legacy=legacy).step(learner, batch())
    start = learner.forwarded[0]
    assert all(
        0 < abs(s - x) <= EPS
        for row, image in zip(start, IMAGES, strict=True)
        for s, x in zip(row, image, strict=True)
    )
    passes, losses, parameters = yopo_by_hand(start, batch(), m, n, 0.6, alpha, legacy)
    torch.testing.assert_close(torch.tensor(learner.forwarded), torch.tensor(passes))
    torch.testing.assert_close(report.losses, losses.detach())
    assert learner.steps == 1
    for found, expected in zip(learner.model.parameters(), parameters, strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("alpha", [0.0, ALPHA])
def test_yopo_one_one_moves_images_by_one_signed_gradient_of_the_whole_network(
    alpha: float,
) -> None:
    """A step of half the radius clips some pixels and leaves others."""
    learner = Learner(Exponential(alpha), two_layers())
    Yopo(m=2, n=1, sigma=0.5).step(learner, batch())
    start, moved = (torch.tensor(rows, dtype=torch.float64) for rows in learner.forwarded)
    x = start.clone().requires_grad_()
    weighted_ce(two_layers()(x), batch().labels, alpha).sum().backward()
    stepped = start + 0.5 * EPS * not_none(x.grad).sign()
    is_free = (stepped - batch().images.flatten(1)).abs() <= EPS
    assert is_free.any()
    torch.testing.assert_close(moved[is_free], stepped[is_free])
    torch.testing.assert_close(
        moved, stepped.clamp(batch().images.flatten(1) - EPS, batch().images.flatten(1) + EPS)
    )


def test_yopo_agrees_with_a_hand_computed_case() -> None:
    """A single layer: its gradient is the mean of p times the moved pixels."""
    learner = Learner(Exponential(ALPHA))
    report = Yopo(m=1, n=1, sigma=0.7).step(learner, batch())
    start = learner.forwarded[0]
    losses_by_hand = []
    gradient = [0.0] * 9
    for begin, image, y in zip(start, IMAGES, LABELS, strict=True):

        def loss(z: list[float], y: int = y) -> float:
            return float(weight_function(y, ALPHA)(z) * ce(z, y))

        z = logits(THETA, begin)
        losses_by_hand.append(loss(z))
        p = numerical_gradient(loss, z)
        image_gradient = [sum(p[c] * THETA[2 * c + k] for c in range(3)) for k in (0, 1)]
        moved = sign_step(begin, image, image_gradient, 0.7 * EPS)
        for c in range(3):
            gradient[2 * c] += p[c] * moved[0] / 3
            gradient[2 * c + 1] += p[c] * moved[1] / 3
            gradient[6 + c] += p[c] / 3
    assert report.losses.tolist() == pytest.approx(losses_by_hand, rel=1e-9)
    assert learner.losses == pytest.approx([sum(losses_by_hand) / 3], rel=1e-9)
    assert theta_of(learner.model) == pytest.approx(
        [old - LR * g for old, g in zip(THETA, gradient, strict=True)], abs=1e-8
    )


def test_yopo_has_another_start_in_every_step() -> None:
    learner = Learner(model=two_layers())
    for step in range(2):
        learner.step_index = step
        Yopo(m=1).step(learner, batch())
    assert learner.forwarded[0] != learner.forwarded[1]


FIRST_LAYERS = {
    "digits-cnn": ("features.0", (1, 8, 8)),
    "preact-resnet18": ("stem.conv", (3, 8, 8)),
    "resnet18": ("conv1", (3, 8, 8)),
    "resnet18:stem=imagenet": ("conv1", (3, 32, 32)),
    "resnet20": ("conv1", (3, 8, 8)),
    "resnet50": ("conv1", (3, 32, 32)),
    "small-cnn": ("feature_extractor.conv1", (1, 28, 28)),
    "wrn-28-10": ("stem.conv", (3, 8, 8)),
    "wrn-34-10": ("stem.conv", (3, 8, 8)),
}


def test_the_cases_cover_every_built_in_network(registry: Registry) -> None:
    ours = {
        owned.entry.name for kind, owned in registry if kind == "model" and owned.owner == "wmr-cli"
    }
    assert ours - {"timm"} == {spec.partition(":")[0] for spec in FIRST_LAYERS}


@pytest.mark.parametrize("spec", FIRST_LAYERS)
def test_the_first_layer_is_found_in_every_built_in_network(spec: str, registry: Registry) -> None:
    name, shape = FIRST_LAYERS[spec]
    with torch.device("meta"):  # its parameters have shapes and no values: nothing is computed
        model = registry.create("model", spec, num_classes=3, input_shape=shape)
        assert find_first_layer(model, torch.zeros(1, *shape)) is model.get_submodule(name)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("spec", "shape", "name"),
    [
        ("digits-cnn:width=2,hidden=4", (1, 8, 8), "features.0"),
        ("small-cnn", (1, 28, 28), "feature_extractor.conv1"),
        ("resnet20:depth=8", (3, 8, 8), "conv1"),
        ("wrn-28-10:width=1", (3, 8, 8), "stem.conv"),
        ("timm:test_resnet", (3, 32, 32), "network.conv1.0"),
        ("timm:test_vit,depth=1", (3, 160, 160), "network.patch_embed.proj"),
    ],
)
def test_yopo_finds_the_first_layer_of_many_networks(
    spec: str, shape: tuple[int, int, int], name: str, registry: Registry
) -> None:
    def take_step(layer: str) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(0)
        learner = RecordingLearner(
            registry.create("model", spec, num_classes=4, input_shape=shape).train()
        )
        for module in learner.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        before = [parameter.detach().clone() for parameter in learner.model.parameters()]
        report = Yopo(m=2, n=2, layer=layer).step(learner, tiny_batch(4, 4, shape))
        assert report.losses.isfinite().all()
        assert any(
            not torch.equal(old, new)
            for old, new in zip(before, learner.model.parameters(), strict=True)
        )
        assert not any(module._forward_hooks for module in learner.model.modules())
        return report.losses, [parameter.detach() for parameter in learner.model.parameters()]

    losses, parameters = take_step("")
    named_losses, named_parameters = take_step(name)
    assert torch.equal(losses, named_losses)
    assert all(
        torch.equal(found, named) for found, named in zip(parameters, named_parameters, strict=True)
    )


def test_an_in_place_relu_after_the_first_layer_changes_nothing() -> None:
    def take_steps(inplace: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(inplace=inplace), nn.Flatten(), nn.Linear(144, 4)
        )
        learner = RecordingLearner(model)
        losses = [Yopo(m=2, n=2).step(learner, tiny_batch()).losses for _ in range(2)]
        return torch.stack(losses), nn.utils.parameters_to_vector(model.parameters())

    assert all(
        torch.equal(kept, written)
        for kept, written in zip(take_steps(False), take_steps(True), strict=True)
    )


def test_a_later_layer_includes_those_before_it() -> None:
    """All parameters up to the named layer get the gradient at the moved images."""
    model = two_layers()
    learner = Learner(model=model)
    Yopo(m=1, n=1, layer="2").step(learner, batch())  # the output of the tanh
    start = torch.tensor(learner.forwarded[0], dtype=torch.float64)
    reference = two_layers()
    features = reference[2](reference[1](start)).detach().requires_grad_()
    (p,) = torch.autograd.grad(
        nn.functional.cross_entropy(reference[3](features), batch().labels), features
    )
    x = start.clone().requires_grad_()
    (image_gradient,) = torch.autograd.grad((p * reference[2](reference[1](x))).sum(), x)
    images = batch().images.flatten(1)
    moved = (start + 0.25 * EPS * image_gradient.sign()).clamp(images - EPS, images + EPS)
    gradients = torch.autograd.grad(
        (p * reference[2](reference[1](moved))).sum(), list(reference[1].parameters())
    )
    for before, after, gradient in zip(
        reference[1].parameters(), model[1].parameters(), gradients, strict=True
    ):
        torch.testing.assert_close(after, before - LR * gradient, rtol=1e-9, atol=1e-11)


class Detour(nn.Module):
    """Has a layer that a forward pass never enters, and one that comes before all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.layer = nn.Linear(64, 4)
        self.spare = nn.Linear(64, 4)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.layer(self.flat(images))
        return result


@pytest.mark.parametrize(
    ("layer", "problem", "hint"),
    [
        ("laier", "no layer 'laier'", "did you mean 'layer'"),
        ("conv9", "no layer 'conv9'", "layer"),
        ("spare", "does not reach the layer", "layer"),
        ("flat", "no parameters are trained", "`layer`"),
    ],
)
def test_an_unusable_first_layer_is_refused_with_a_hint(
    layer: str, problem: str, hint: str
) -> None:
    with pytest.raises(BadInput, match=problem) as refused:
        Yopo(layer=layer).step(RecordingLearner(Detour()), tiny_batch())
    assert hint in refused.value.hint


class Shift(nn.Module):
    """A network whose only parameters belong to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.flat(images)[:, :4] + self.bias
        return result


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(BadInput, match="first layer") as refused:
        Yopo().step(RecordingLearner(Shift()), tiny_batch())
    assert "layer" in refused.value.hint


# iaat


class RadiusLimitedLearner(RecordingLearner):
    """An attack succeeds beyond a limit per image; the attacks of the defense are recorded."""

    def __init__(self, limits: dict[int, float]) -> None:
        super().__init__(network())
        self.limits = limits
        self.attack_calls: list[Any] = []
        self.adversarial: Tensor | None = None

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        settings = vars(not_none(own))
        radii = settings["eps"].tolist()
        self.attack_calls.append((radii, settings["step"].tolist(), settings["steps"]))
        is_misclassified = [
            radius > self.limits[index]
            for radius, index in zip(radii, batch.index.tolist(), strict=True)
        ]
        self.predictions = torch.where(
            torch.tensor(is_misclassified), (batch.labels + 1) % 3, batch.labels
        )
        self.adversarial = batch.images.clone()
        return AttackResult(self.adversarial, torch.zeros_like(batch.labels))

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        with super().attack_mode() as network:
            yield FixedPredictions(self, network)


class FixedPredictions(nn.Module):
    """A network with known outputs for the images of the last attack."""

    def __init__(self, learner: RadiusLimitedLearner, network: nn.Module) -> None:
        super().__init__()
        self.learner = learner
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        if images is self.learner.adversarial:
            return nn.functional.one_hot(self.learner.predictions, 3)
        logits: Tensor = self.network(images)
        return logits


CORRECT = ([0.2, 0.7], 1)
MISCLASSIFIED = ([0.2, 0.7], 2)
"""The same image, with the label that the network predicts and with another one."""


def radii_after(
    defense: InstanceAdaptive,
    learner: RadiusLimitedLearner,
    images: list[tuple[list[float], int]],
    index: list[int],
) -> list[float]:
    pixels, labels = zip(*images, strict=True)
    defense.step(learner, batch(list(pixels), list(labels), index))
    return [defense.state()["radii"][place].item() for place in index]


GAMMA = 0.2
BETA = 0.3
RADIUS_CASES = {
    "robust at the next larger radius: grow": (CORRECT, 0.04, 1.0, 0.04 + GAMMA * EPS),
    "robust at its own radius only: keep": (CORRECT, 0.04, 0.045, 0.04),
    "misclassified at its own radius: shrink": (CORRECT, 0.04, 0.01, 0.04 - GAMMA * EPS),
    "a radius does not shrink below 0": (CORRECT, 0.004, 0.001, 0.0),
    "misclassified at radius 0: stay at 0": (CORRECT, 0.0, 0.001, 0.0),
    "robust at radius 0: grow": (CORRECT, 0.0, 1.0, GAMMA * EPS),
    "a radius may exceed eps": (CORRECT, 0.3, 1.0, 0.3 + GAMMA * EPS),
    "misclassified without an attack, robust: 0": (MISCLASSIFIED, 0.04, 1.0, 0.0),
    "misclassified without an attack, not robust: 0": (MISCLASSIFIED, 0.04, 0.01, 0.0),
}
"""Image, radius before, largest robust radius, target radius."""


@pytest.mark.parametrize("case", RADIUS_CASES)
def test_the_radius_of_an_image_follows_the_table(case: str) -> None:
    image, before, limit, target = RADIUS_CASES[case]
    defense = InstanceAdaptive(gamma=GAMMA, beta=BETA, warmup=2, steps=10)
    defense.load_state({"radii": torch.tensor([9.0, before, 9.0])})
    learner = RadiusLimitedLearner({1: limit})
    learner.epoch = 2
    (found,) = radii_after(defense, learner, [image], [1])
    assert found == pytest.approx(BETA * target + (1 - BETA) * before, abs=1e-7)
    tried = [radii[0] for radii, _, _ in learner.attack_calls]
    # its own radius, the next larger one, and the new one for training
    assert tried == pytest.approx([before, before + GAMMA * EPS, found], abs=1e-7)
    assert defense.state()["radii"].tolist()[::2] == [9.0, 9.0], "no other radius changes"


def test_during_warm_up_correct_images_have_the_full_radius() -> None:
    defense = InstanceAdaptive(warmup=2, gamma=GAMMA, beta=BETA)
    learner = RadiusLimitedLearner({3: 0.0, 5: 0.0})
    for learner.epoch in (0, 1):
        assert radii_after(defense, learner, [CORRECT, MISCLASSIFIED], [3, 5]) == pytest.approx(
            [EPS, 0.0]
        )
        # independent of the radius before
        assert radii_after(defense, learner, [MISCLASSIFIED, CORRECT], [3, 5]) == pytest.approx(
            [0.0, EPS]
        )
    assert len(learner.attack_calls) == 4, "no other radius is tried"
    learner.epoch = 2
    # image 3 has radius 0 and cannot shrink; image 5 is misclassified at eps
    shrunk = EPS - BETA * GAMMA * EPS
    assert radii_after(defense, learner, [CORRECT, CORRECT], [3, 5]) == pytest.approx(
        [0.0, shrunk], abs=1e-7
    )


def test_radii_follow_the_image_index() -> None:
    defense = InstanceAdaptive(warmup=0, gamma=GAMMA, beta=1.0)
    learner = RadiusLimitedLearner({0: 1.0, 7: 0.0, 40: 1.0})
    step = GAMMA * EPS
    assert radii_after(defense, learner, [CORRECT, CORRECT], [0, 7]) == pytest.approx(
        [step, 0.0], abs=1e-7
    )
    assert radii_after(defense, learner, [CORRECT, CORRECT], [40, 0]) == pytest.approx(
        [step, 2 * step], abs=1e-7
    ), "the radius of image 0 is kept"
    assert radii_after(
        defense, learner, [CORRECT, CORRECT, MISCLASSIFIED], [7, 0, 40]
    ) == pytest.approx([0.0, 3 * step, 0.0], abs=1e-7)
    radii = defense.state()["radii"]
    assert len(radii) == 41
    assert set(radii.nonzero().flatten().tolist()) == {0}


def test_the_state_of_the_radii_is_restored() -> None:
    defense = InstanceAdaptive(warmup=1)
    restored = InstanceAdaptive(warmup=1)
    radii_after(defense, RadiusLimitedLearner({2: 1.0}), [CORRECT], [2])
    restored.load_state({name: tensor.clone() for name, tensor in defense.state().items()})
    assert torch.equal(restored.state()["radii"], defense.state()["radii"])


def test_the_step_size_follows_the_radius_and_has_a_minimum() -> None:
    defense = InstanceAdaptive(warmup=0, gamma=0.0, steps=10, smallest_step=0.25)
    defense.load_state({"radii": torch.tensor([0.0, 0.05, 0.2])})
    learner = RadiusLimitedLearner({0: 1.0, 1: 1.0, 2: 1.0})
    radii_after(defense, learner, [CORRECT] * 3, [0, 1, 2])
    radii, step, steps = learner.attack_calls[-1]
    assert radii == pytest.approx([0.0, 0.05, 0.2])
    # a quarter of eps; 0.05 / 5 is less than that; 0.2 / 5
    assert step == pytest.approx([0.0125, 0.0125, 0.04])
    assert steps == 10


def test_defaults_are_the_published_values_relative_to_eps(registry: Registry) -> None:
    defenses = {name: registry.create("defense", name) for name in registry.names("defense")}
    eps = 8 / 255
    iaat = defenses["iaat"]
    assert iaat.gamma * eps == pytest.approx(1.9 / 255)
    assert iaat.smallest_step * eps == pytest.approx(2 / 255)
    assert (iaat.steps, iaat.beta, iaat.warmup) == (10, 0.1, 10)
    yopo = defenses["yopo"]
    assert yopo.sigma == iaat.smallest_step
    assert (yopo.m, yopo.n, yopo.legacy) == (5, 3, False)
    assert defenses["free"].m == 8
    assert defenses["fgsm-rs"].reach == 1.25
    assert defenses["trades"].beta == 6
    assert defenses["trades"].terms == "kl"
    assert defenses["mart"].lam == 5
    assert defenses["mart"].terms == "adv"
    assert defenses["alp"].lam == 0.5
    assert defenses["alp"].labels == "predicted"
    assert defenses["combined"].lam == 1


def test_every_image_is_attacked_in_its_own_eps_ball() -> None:
    """Two hand-computed steps; the third image is misclassified and does not move."""
    learner = Learner(Exponential(ALPHA))
    visited = []
    learner.model.register_forward_pre_hook(lambda model, args: visited.append(pixels_of(args[0])))
    report = InstanceAdaptive(warmup=1, steps=2, smallest_step=0.5).step(learner, batch())
    clean, start, *_ = visited
    assert clean == IMAGES
    assert start[2] == IMAGES[2]
    found = []
    for row, image, y, radius in zip(start, IMAGES, LABELS, (EPS, EPS, 0.0), strict=True):
        for _ in range(2):
            gradient = numerical_gradient(lambda pixels, y=y: ce(logits(THETA, pixels), y), row)
            row = sign_step(row, image, gradient, max(radius, 0.5 * EPS), radius)
        found.append(row)
    assert learner.forwarded == [[pytest.approx(row, abs=1e-7) for row in found]]
    losses_by_hand = [
        weight_function(y, ALPHA)(logits(THETA, row)) * ce(logits(THETA, row), y)
        for row, y in zip(found, LABELS, strict=True)
    ]
    assert report.losses.tolist() == pytest.approx(losses_by_hand, rel=1e-6)


# on the learner of real runs

DEFENSE_SPECS = [
    "alp", "alp:labels=true", "combined", "fgsm-rs", "free:m=2", "iaat:warmup=1,steps=2", "mart",
    "mart:terms=both", "natural", "pgd", "trades", "trades:terms=both", "yopo:m=2,n=2",
    "yopo:m=1,n=1,legacy=true",
]  # fmt: skip


def test_the_cases_cover_every_built_in_defense(registry: Registry) -> None:
    ours = {
        owned.entry.name
        for kind, owned in registry
        if kind == "defense" and owned.owner == "wmr-cli"
    }
    assert ours == {spec.partition(":")[0] for spec in DEFENSE_SPECS}


def fabric_learner(
    kernel: Kernel, precision: Literal["32", "bf16", "16"] = "32", **settings: Any
) -> FabricLearner:
    model = tiny_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-3)
    attack = Pgd(eps=0.1, steps=2, step=0.06, start="gauss:0.001")
    config = TrainConfig(eps=0.1, seed=5, precision=precision, **settings)
    fabric = devices.single_process("cpu", precision)
    return FabricLearner(
        fabric,
        config,
        model=model,
        optimizer=optimizer,
        attack=attack,
        kernel=kernel,
        num_classes=4,
    )


def train_steps(defense: Defense, learner: FabricLearner, steps: int = 4) -> tuple[Tensor, Tensor]:
    """Return the losses of every step and the final parameters, over two epochs."""
    losses = []
    for step in range(steps):
        whole = tiny_batch()
        rows = torch.roll(torch.arange(12), step)[:8]
        part = Batch(whole.images[rows], whole.labels[rows], whole.index[rows])
        learner.begin_step(step // 2, step, StepSettings(LR), batch_size=8)
        losses.append(defense.step(learner, part).losses)
    return torch.stack(losses), nn.utils.parameters_to_vector(learner.model.parameters()).detach()


@pytest.mark.parametrize("spec", DEFENSE_SPECS)
def test_alpha_zero_is_bit_identical_to_no_weights(spec: str, registry: Registry) -> None:
    runs = [
        train_steps(registry.create("defense", spec), fabric_learner(kernel))
        for kernel in (Exponential(0.0), Uniform())
    ]
    assert all(torch.equal(zero, none) for zero, none in zip(*runs, strict=True))
    assert not torch.equal(runs[0][1], nn.utils.parameters_to_vector(tiny_model().parameters()))


@pytest.mark.parametrize("spec", DEFENSE_SPECS)
def test_a_positive_alpha_is_another_method(spec: str, registry: Registry) -> None:
    one, none = (
        train_steps(registry.create("defense", spec), fabric_learner(kernel), 2)[1]
        for kernel in (Exponential(), Uniform())
    )
    assert not torch.allclose(one, none)


@pytest.mark.parametrize("spec", DEFENSE_SPECS)
def test_every_defense_works_in_half_precision(spec: str, registry: Registry) -> None:
    learner = fabric_learner(Exponential(), precision="bf16")
    losses, parameters = train_steps(registry.create("defense", spec), learner, 2)
    assert losses.isfinite().all()
    assert parameters.isfinite().all()
    assert not torch.equal(
        losses, train_steps(registry.create("defense", spec), fabric_learner(Exponential()), 2)[0]
    )


@dataclass(frozen=True, eq=False)
class Push:
    """An own attack that moves every image by its radius, times a factor."""

    eps: Tensor
    factor: float = 1.0
    traits: ClassVar[AttackTraits] = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        moved = (batch.images + self.factor * self.eps.reshape(-1, 1, 1, 1)).clamp(0, 1)
        return AttackResult(moved, torch.zeros_like(batch.labels), model(moved).detach())


def test_an_own_attack_is_checked_against_its_own_radii() -> None:
    learner = fabric_learner(Uniform())
    on = tiny_batch(4)
    radii = torch.tensor([0.0, 0.05, 0.2, 0.4])  # beyond the 0.1 of the run
    attacked = learner.attack(on, cross_entropy, Push(radii))
    assert torch.equal(attacked.images, (on.images + radii.reshape(-1, 1, 1, 1)).clamp(0, 1))
    with pytest.raises(BrokenContract, match="image 102: Push "):
        learner.attack(on, cross_entropy, Push(radii, 1.1))


def test_an_own_attack_is_weighted_as_configured() -> None:
    images = {}
    for weight_grad in ("both", "none"):
        seen: list[Any] = []
        learner = fabric_learner(Exponential(20.0), weight_grad=weight_grad)
        learner.model.get_submodule("0").register_forward_pre_hook(
            lambda layer, args, seen=seen: seen.append(args[0].detach())
        )
        learner.begin_step(0, 0, StepSettings(LR), batch_size=12)
        FastTraining().step(learner, tiny_batch())
        images[weight_grad] = seen
    assert torch.equal(images["both"][0], images["none"][0]), "the same start"
    assert not torch.equal(images["both"][1], images["none"][1]), "another step"


def test_added_gradients_are_summed_with_existing_ones() -> None:
    learner = fabric_learner(Uniform())
    bias = learner.model.get_parameter("0.bias")
    weight = learner.model.get_parameter("0.weight")
    bias.grad = torch.ones(8)
    learner.add_gradients({bias: torch.full((8,), 2.0), weight: torch.full_like(weight, 3.0)})
    assert torch.equal(bias.grad, torch.full((8,), 3.0))
    assert torch.equal(not_none(weight.grad), torch.full_like(weight, 3.0))
    values = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(learner.gather(values), values), "there is one rank"


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_radii_per_image_agree_with_single_radii(norm: str) -> None:
    ball = NORMS[norm]
    delta = tiny_batch(4).images - 0.5
    radii = torch.tensor([0.0, 0.01, 0.3, 9.0])
    index = torch.arange(4)
    each = radii.reshape(-1, 1, 1, 1)
    projected = ball.project(delta, each)
    drawn = ball.random(delta, each, index, 3, 0)
    for row, radius in enumerate(radii.tolist()):
        assert torch.equal(projected[row], ball.project(delta[row : row + 1], radius)[0])
        assert torch.allclose(
            drawn[row], ball.random(delta[row : row + 1], radius, index[row : row + 1], 3, 0)[0]
        )


@pytest.mark.parametrize(
    "spec",
    [
        "alp:lam=-1", "combined:lam=-1", "fgsm-rs:reach=0", "free:m=0", "iaat:beta=1.1",
        "iaat:gamma=-1", "iaat:smallest-step=-1", "iaat:steps=0", "iaat:warmup=-1", "mart:lam=-1",
        "trades:beta=-1", "yopo:m=0", "yopo:n=0", "yopo:sigma=0",
    ],
)  # fmt: skip
def test_invalid_parameters_are_refused_with_a_hint(spec: str, registry: Registry) -> None:
    with pytest.raises(BadInput) as refused:
        registry.create("defense", spec)
    assert refused.value.hint


def test_the_evidence_of_trades_has_steps_survived() -> None:
    learner = Learner()
    Trades().step(learner, replace(batch(), index=torch.tensor([4, 5, 6])))
    (evidence,) = learner.evidence
    assert not_none(evidence.steps_survived).tolist() == SURVIVED
    assert not_none(evidence.index).tolist() == [4, 5, 6]
