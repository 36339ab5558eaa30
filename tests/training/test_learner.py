"""Training steps equal independent loops that are written from the published formulas."""

import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from support.typed import not_none
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.defenses.pgd import FastTraining, Natural, PgdTraining
from wmr_cli.builtins.defenses.trades import Trades
from wmr_cli.builtins.kernels.exp import Exponential, Uniform
from wmr_cli.config import TrainConfig
from wmr_cli.core import rng
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.protocols import Attack, AttackResult, Batch, Defense, Evidence, Kernel, Objective
from wmr_cli.core.traits import AttackTraits, KernelTraits
from wmr_cli.evaluation.evaluator import Evaluator
from wmr_cli.measures import accuracy, crafted_accuracy, sampled_accuracy
from wmr_cli.runtime import fabric as devices
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.optimization import StepSettings

SEED, EPS, STEP, K, BETA, LR = 5, 0.1, 0.03, 4, 6.0, 0.1
ATTACK = Pgd(eps=EPS, steps=K, step=STEP, start="gauss:0.001")
DEFENSES: dict[str, Defense] = {"pgd": PgdTraining(), "trades": Trades(BETA)}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.Tanh(), nn.Linear(10, 3))


def network_with_batch_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3)
    )


def batch(number: int = 0, size: int = 16) -> Batch:
    """Make a batch whose size is a power of two, so that dividing by it is exact."""
    generator = torch.Generator().manual_seed(number)
    images = torch.rand(size, 1, 4, 4, generator=generator)
    return Batch(
        images, torch.randint(3, (size,), generator=generator), torch.arange(size) + number * size
    )


def select_rows(whole: Batch, rows: Tensor) -> Batch:
    return Batch(whole.images[rows], whole.labels[rows], whole.index[rows])


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-3)


def make_learner(
    kernel: Kernel,
    model: nn.Module | None = None,
    attack: Attack = ATTACK,
    **settings: Any,
) -> FabricLearner:
    fabric = devices.single_process("cpu")
    model = model or network()
    config = TrainConfig(eps=EPS, seed=SEED, **settings)
    return FabricLearner(
        fabric,
        config,
        model=model,
        optimizer=sgd(model),
        attack=attack,
        kernel=kernel,
        num_classes=3,
    )


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def train(defense: Defense, learner: FabricLearner, steps: int = 4) -> tuple[Tensor, Tensor]:
    """Return the per-image losses of every step, and the parameters after the last."""
    losses = []
    for step in range(steps):
        learner.begin_step(0, step, StepSettings(LR), batch_size=16)
        losses.append(defense.step(learner, batch(step)).losses)
    return torch.stack(losses), vector(learner.model)


def gradient(defense: Defense, learner: FabricLearner, on: Batch) -> Tensor:
    """Return the gradient of one step, without the optimizer step that would clear it."""
    learner.begin_step(0, 0, StepSettings(LR), batch_size=16)
    learner.model.zero_grad()
    with patch.object(learner, "optimizer_step"):
        defense.step(learner, on)
    return torch.cat(
        [not_none(parameter.grad).flatten() for parameter in learner.model.parameters()]
    )


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    p = logits.softmax(dim=1)
    others = p.masked_fill(functional.one_hot(labels, 3).bool(), -1).amax(dim=1)
    return p.gather(1, labels[:, None]).squeeze(1) - others


def kl(clean: Tensor, adversarial: Tensor) -> Tensor:
    natural = clean.log_softmax(dim=1)
    return (natural.exp() * (natural - adversarial.log_softmax(dim=1))).sum(dim=1)


def reference_attack(
    model: nn.Module, on: Batch, step: int, objective: Callable[[Tensor], Tensor]
) -> Tensor:
    """Add noise of 0.001, then take K sign steps with projection to ε-ball and [0, 1]."""
    drawn = rng.normal(on.images, on.index, rng.derive_seed("attack", SEED, step))
    moved = (on.images + (0.001 * drawn + on.images - on.images).clamp(-EPS, EPS)).clamp(0, 1)
    for _ in range(K):
        moved.requires_grad_()
        (gradient,) = torch.autograd.grad(objective(model(moved)).sum(), moved)
        moved = moved.detach() + STEP * gradient.sign()
        moved = (on.images + (moved - on.images).clamp(-EPS, EPS)).clamp(0, 1)
    return moved


def reference_madry_losses(model: nn.Module, on: Batch, step: int) -> Tensor:
    def loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits, on.labels, reduction="none")

    return loss(model(reference_attack(model, on, step, loss)))


def reference_trades_losses(model: nn.Module, on: Batch, step: int) -> Tensor:
    natural = model(on.images).detach()
    moved = reference_attack(model, on, step, lambda logits: kl(natural, logits))
    clean, adversarial = model(on.images), model(moved)
    return functional.cross_entropy(clean, on.labels, reduction="none") + BETA * kl(
        clean, adversarial
    )


BY_HAND = {"pgd": reference_madry_losses, "trades": reference_trades_losses}


def train_reference(losses_of: Callable[..., Any], steps: int = 4) -> tuple[Tensor, Tensor]:
    model, losses = network(), []
    optimizer = sgd(model)
    for step in range(steps):
        step_losses = losses_of(model, batch(step), step)
        optimizer.zero_grad()
        step_losses.mean().backward()
        optimizer.step()
        losses.append(step_losses.detach())
    return torch.stack(losses), vector(model)


class FixedPatternAttack:
    """Add the same small pattern to all images."""

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        moved = self.moved(batch.images)
        with torch.no_grad():
            return AttackResult(moved, torch.zeros_like(batch.labels), model(moved))

    def moved(self, images: Tensor) -> Tensor:
        pattern = torch.linspace(-EPS, EPS, 16).reshape(1, 1, 4, 4)
        return (images + pattern).clamp(0, 1)


class FailingAttack:
    """Fail if the attack is run."""

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        raise AssertionError("attacked")


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("weight_grad", ["both", "outer", "attack", "none"])
def test_alpha_zero_is_bit_identical_to_the_unweighted_kernel(name: str, weight_grad: str) -> None:
    losses, parameters = train(
        DEFENSES[name], make_learner(Exponential(0.0), weight_grad=weight_grad)
    )
    plain_losses, plain_parameters = train(
        DEFENSES[name], make_learner(Uniform(), weight_grad=weight_grad)
    )
    assert torch.equal(losses, plain_losses)
    assert torch.equal(parameters, plain_parameters)
    assert not torch.equal(parameters, vector(network()))


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("kernel", [Exponential(0.0), Uniform()], ids=str)
def test_alpha_zero_is_bit_identical_to_the_published_method(name: str, kernel: Kernel) -> None:
    losses, parameters = train(DEFENSES[name], make_learner(kernel))
    published_losses, published_parameters = train_reference(BY_HAND[name])
    assert torch.equal(losses, published_losses)
    assert torch.equal(parameters, published_parameters)


@pytest.mark.parametrize("name", DEFENSES)
def test_a_positive_alpha_changes_the_weights_of_the_model(name: str) -> None:
    assert not torch.allclose(
        train(DEFENSES[name], make_learner(Exponential(1.0)))[1], train_reference(BY_HAND[name])[1]
    )


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_the_trades_loss_is_clean_cross_entropy_plus_beta_times_weighted_kl(
    alpha: float,
) -> None:
    model, on = network(), batch()
    clean, adversarial = (
        model(on.images).double(),
        model(FixedPatternAttack().moved(on.images)).double(),
    )
    weights = (-alpha * margins(adversarial, on.labels)).exp().tolist()
    expected = 0.0
    rows = zip(
        clean.softmax(dim=1).tolist(),
        adversarial.softmax(dim=1).tolist(),
        on.labels.tolist(),
        weights,
        strict=True,
    )
    for p, q, label, weight in rows:
        divergence = sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))
        expected += (-math.log(p[label]) + BETA * weight * divergence) / 16
    learner = make_learner(Exponential(alpha), attack=FixedPatternAttack())
    learner.begin_step(0, 0, StepSettings(LR), batch_size=16)
    report = Trades(BETA).step(learner, on)
    assert report.losses.mean().item() == pytest.approx(expected, rel=1e-6)
    assert report.weights.tolist() == pytest.approx(
        weights, rel=1e-5
    )  # of the adversarial logits, not of the clean ones
    assert alpha == 0 or report.weights.tolist() != pytest.approx(
        (-alpha * margins(clean, on.labels)).exp().tolist(), rel=1e-3
    )


def test_trades_without_weights_uses_the_published_batchmean() -> None:
    model, on = network(), batch()
    clean, adversarial = model(on.images), model(FixedPatternAttack().moved(on.images))
    divergence = functional.kl_div(
        adversarial.log_softmax(dim=1), clean.softmax(dim=1), reduction="batchmean"
    )
    loss = functional.cross_entropy(clean, on.labels) + BETA * divergence
    loss.backward()
    published = torch.cat([not_none(parameter.grad).flatten() for parameter in model.parameters()])
    found = gradient(Trades(BETA), make_learner(Exponential(0.0), attack=FixedPatternAttack()), on)
    torch.testing.assert_close(found, published, rtol=1e-4, atol=1e-6)


def test_a_report_has_losses_weights_and_margins_of_the_step() -> None:
    model, on = network(), batch()
    logits = model(FixedPatternAttack().moved(on.images)).detach()
    learner = make_learner(Exponential(2.0), attack=FixedPatternAttack())
    learner.begin_step(0, 0, StepSettings(LR), batch_size=16)
    report = PgdTraining().step(learner, on)
    torch.testing.assert_close(report.margins, margins(logits, on.labels))
    torch.testing.assert_close(report.weights, (-2 * margins(logits, on.labels)).exp())
    torch.testing.assert_close(
        report.losses,
        report.weights * functional.cross_entropy(logits, on.labels, reduction="none"),
    )
    assert torch.equal(report.correct, logits.argmax(dim=1) == on.labels)
    assert not any(part.requires_grad for part in (report.losses, report.weights, report.margins))


def evidence(scale: float = 3.0) -> Evidence:
    generator = torch.Generator().manual_seed(7)
    logits = (scale * torch.randn(16, 3, generator=generator)).requires_grad_()
    return Evidence(logits, torch.randint(3, (16,), generator=generator))


def test_weights_are_those_of_the_kernel_or_have_mean_one() -> None:
    seen = evidence()
    expected = (-2 * margins(seen.logits, seen.labels)).exp()
    torch.testing.assert_close(make_learner(Exponential(2.0)).weights(seen), expected)
    normalized = make_learner(Exponential(2.0), normalize="batch").weights(seen)
    torch.testing.assert_close(normalized, expected / expected.mean())


def test_the_normalizing_mean_has_no_gradient() -> None:
    seen = evidence()
    expected = (-2 * margins(seen.logits, seen.labels)).exp()
    (found,) = torch.autograd.grad(
        make_learner(Exponential(2.0), normalize="batch").weights(seen).sum(), seen.logits
    )
    (plain,) = torch.autograd.grad((expected / expected.mean().item()).sum(), seen.logits)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)
    assert found.abs().max() > 0.01  # with the mean in the graph the sum would be constant


@pytest.mark.parametrize(
    ("weight_grad", "flows"), [("both", True), ("outer", True), ("attack", False), ("none", False)]
)
def test_weights_have_a_gradient_for_both_and_outer(weight_grad: str, flows: bool) -> None:
    assert (
        make_learner(Exponential(2.0), weight_grad=weight_grad).weights(evidence()).requires_grad
        == flows
    )


class ShiftedExponential:
    """The paper's kernel plus a constant."""

    traits = KernelTraits()

    def __init__(self, constant: float) -> None:
        self.constant = constant

    def __call__(self, evidence: Evidence) -> Tensor:
        return Exponential(2.0)(evidence) + self.constant


@pytest.mark.parametrize("constant", [-5.0, 3.0])
def test_a_constant_in_the_log_weights_cancels_only_in_normalized_weights(constant: float) -> None:
    on = batch()
    for normalize, cancels in (("batch", True), ("none", False)):
        base, moved = (
            gradient(PgdTraining(), make_learner(ShiftedExponential(c), normalize=normalize), on)
            for c in (0.0, constant)
        )
        assert torch.allclose(base, moved, rtol=1e-4, atol=1e-6) == cancels


@pytest.mark.parametrize("constant", [100.0, -200.0])
def test_normalized_weights_never_overflow(constant: float) -> None:
    seen = evidence()
    weights = make_learner(ShiftedExponential(constant), normalize="batch").weights(seen)
    torch.testing.assert_close(
        weights,
        make_learner(Exponential(2.0), normalize="batch").weights(seen),
        rtol=1e-4,
        atol=1e-6,
    )


def reference_gradient(weight_grad: str, alpha: float, on: Batch) -> Tensor:
    """Return the gradient of one step.

    The attack is weighted for `both` and `attack`; the weight of the loss has a gradient for
    `both` and `outer`.
    """
    model = network()

    def loss(logits: Tensor) -> Tensor:
        return functional.cross_entropy(logits, on.labels, reduction="none")

    def weighted(logits: Tensor) -> Tensor:
        return (-alpha * margins(logits, on.labels)).exp() * loss(logits)

    moved = reference_attack(model, on, 0, weighted if weight_grad in ("both", "attack") else loss)
    logits = model(moved)
    weights = (-alpha * margins(logits, on.labels)).exp()
    if weight_grad in ("attack", "none"):
        weights = weights.detach()
    (weights * loss(logits)).mean().backward()
    return torch.cat([not_none(parameter.grad).flatten() for parameter in model.parameters()])


WEIGHT_GRADS = ("both", "outer", "attack", "none")


@pytest.mark.parametrize("weight_grad", WEIGHT_GRADS)
def test_each_weight_grad_matches_its_formula(weight_grad: str) -> None:
    found = gradient(
        PgdTraining(), make_learner(Exponential(4.0), weight_grad=weight_grad), batch()
    )
    torch.testing.assert_close(
        found, reference_gradient(weight_grad, 4.0, batch()), rtol=1e-4, atol=1e-6
    )


def test_all_weight_grads_give_different_gradients() -> None:
    learners = [
        make_learner(Exponential(4.0), weight_grad=weight_grad) for weight_grad in WEIGHT_GRADS
    ]
    found = [gradient(PgdTraining(), learner, batch()) for learner in learners]
    assert not any(
        torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in itertools.combinations(found, 2)
    )


def test_the_attack_is_weighted_for_both_and_attack_only() -> None:
    images = {}
    for weight_grad in WEIGHT_GRADS:
        learner = make_learner(Exponential(4.0), weight_grad=weight_grad)
        images[weight_grad] = learner.attack(batch(), cross_entropy).images
    assert torch.equal(images["both"], images["attack"])
    assert torch.equal(images["outer"], images["none"])
    assert not torch.equal(images["both"], images["none"])


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize(("normalize", "agrees"), [("none", True), ("batch", False)])
def test_gradients_of_equal_parts_average_to_that_of_the_batch(
    name: str, normalize: str, agrees: bool
) -> None:
    on, learner = batch(), make_learner(Exponential(2.0), normalize=normalize)
    whole = gradient(DEFENSES[name], learner, on)
    parts = [
        gradient(DEFENSES[name], learner, select_rows(on, rows))
        for rows in torch.arange(16).split(4)
    ]
    assert torch.allclose(torch.stack(parts).mean(dim=0), whole, rtol=1e-3, atol=1e-5) == agrees


@pytest.mark.parametrize(("attack_mode", "stays"), [("eval", True), ("train", False)])
def test_an_attack_changes_batch_statistics_in_train_mode_only(
    attack_mode: str, stays: bool
) -> None:
    learner = make_learner(Exponential(1.0), network_with_batch_norm(), attack_mode=attack_mode)
    learner.begin_step(0, 0, StepSettings(LR), batch_size=16)
    before = {
        name: value.clone() for name, value in learner.model.get_submodule("2").named_buffers()
    }
    learner.attack(batch(), cross_entropy)
    assert [
        torch.equal(value, before[name])
        for name, value in learner.model.get_submodule("2").named_buffers()
    ] == [stays] * 3
    assert all(module.training for module in learner.model.modules())


@pytest.mark.parametrize("attack_mode", ["eval", "train"])
@pytest.mark.parametrize("defense", [PgdTraining(), Trades(), FastTraining()])
def test_measuring_attack_success_does_not_change_a_step(
    defense: Defense, attack_mode: str
) -> None:
    found = []
    for judged in (True, False):
        learner = make_learner(Exponential(1.0), network_with_batch_norm(), attack_mode=attack_mode)
        passes: list[Any] = []
        learner.begin_step(0, 0, StepSettings(LR), batch_size=16, measure_success=judged)
        learner.model.register_forward_hook(lambda *_, passes=passes: passes.append(1))
        report = defense.step(learner, batch())
        found.append((report.losses, vector(learner.model), len(passes)))
        assert (learner.attack_outcome is not None) == (judged and attack_mode == "eval")
    (losses, weights, measured), (other_losses, other_weights, unmeasured) = found
    assert torch.equal(losses, other_losses)
    assert torch.equal(weights, other_weights)
    assert unmeasured == measured - (attack_mode == "eval"), "one pass less in eval mode"


@pytest.mark.parametrize(
    ("defense", "forwards"), [(Natural(), 1), (PgdTraining(), 1), (Trades(), 2)]
)
def test_a_step_updates_batch_statistics_once_per_forward_pass_of_the_loss(
    defense: Defense, forwards: int
) -> None:
    learner = make_learner(Exponential(1.0), network_with_batch_norm())
    learner.begin_step(0, 0, StepSettings(LR), batch_size=16)
    defense.step(learner, batch())
    assert learner.model.get_buffer("2.num_batches_tracked") == forwards


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_natural_training_uses_weighted_clean_cross_entropy_without_attack(alpha: float) -> None:
    def losses(model: nn.Module, on: Batch, step: int) -> Tensor:
        logits = model(on.images)
        return (-alpha * margins(logits, on.labels)).exp() * functional.cross_entropy(
            logits, on.labels, reduction="none"
        )

    found_losses, found_parameters = train(
        Natural(), make_learner(Exponential(alpha), attack=FailingAttack())
    )
    losses_by_hand, parameters_by_hand = train_reference(losses)
    torch.testing.assert_close(found_losses, losses_by_hand)
    torch.testing.assert_close(found_parameters, parameters_by_hand)


def test_a_step_sets_learning_rate_mode_and_seed_and_clears_gradients() -> None:
    learner = make_learner(Uniform())
    PgdTraining().step(learner, batch())
    learner.model.eval()
    drawn = []
    for step in (3, 4, 3):
        learner.begin_step(1, step, StepSettings(0.025), batch_size=16)
        drawn.append(torch.rand(()).item())
    assert (learner.epoch, learner.step_index, learner.model.training) == (1, 3, True)
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert drawn[0] == drawn[2] != drawn[1]
    before = vector(learner.model)
    learner.begin_step(1, 3, StepSettings(0.0), batch_size=16)
    PgdTraining().step(learner, batch())
    assert torch.equal(vector(learner.model), before)


def test_the_sampled_accuracy_of_a_trained_model_is_below_its_robust_accuracy() -> None:
    generator = torch.Generator().manual_seed(8)
    labels = torch.randint(3, (256,), generator=generator)
    patterns = torch.rand(3, 1, 4, 4, generator=generator)
    images = (patterns[labels] + 0.2 * torch.randn(256, 1, 4, 4, generator=generator)).clamp(0, 1)
    whole = Batch(images, labels, torch.arange(256))
    learner = make_learner(Exponential(1.0))
    for step in range(40):
        learner.begin_step(0, step, StepSettings(LR), batch_size=16)
        PgdTraining().step(
            learner, select_rows(whole, torch.arange(step % 4 * 64, step % 4 * 64 + 64))
        )
    kernels: dict[float | None, Kernel] = {alpha: Exponential(alpha) for alpha in (0.0, 1.0, 2.0)}
    rows = Evaluator(
        model=learner.model,
        attack=ATTACK,
        norm="linf",
        eps=EPS,
        num_classes=3,
        seed=0,
        kernels=kernels,
    ).evaluate_batch(whole)
    natural, robust = (
        not_none(accuracy(rows, "clean")).value,
        not_none(accuracy(rows, "uniform")).value,
    )
    sampled = [not_none(sampled_accuracy(rows, "exp", alpha)).value for alpha in (0.0, 1.0, 2.0)]
    assert 0.5 < robust < natural
    assert sampled[0] == robust
    assert sampled[2] < sampled[1] < sampled[0]
    assert not_none(crafted_accuracy(rows, "exp", 0.0)).value == robust
    assert not_none(crafted_accuracy(rows, "exp", 2.0)).value < robust
