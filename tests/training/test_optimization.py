"""Optimizers, schedules, weight averages and loss settings match their definitions."""

from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import patch

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from support.typed import instance_of
from wmr_cli.builtins.attacks.pgd import Pgd
from wmr_cli.builtins.defenses.pgd import Natural
from wmr_cli.builtins.defenses.trades import Trades
from wmr_cli.builtins.kernels.exp import Exponential
from wmr_cli.config import TrainConfig, resolve
from wmr_cli.core.losses import cross_entropy, probability_margin
from wmr_cli.core.protocols import AttackResult, Batch, Evidence, Objective
from wmr_cli.errors import BadInput
from wmr_cli.runtime import fabric
from wmr_cli.training.learner import FabricLearner
from wmr_cli.training.optimization import (
    StepSettings,
    WeightAverage,
    make_optimizer,
    parameter_groups,
    settings_at,
)

EPS, COUNT = 0.1, 8


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 10), nn.BatchNorm1d(10), nn.Tanh(), nn.Linear(10, 3)
    )


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(COUNT, 1, 4, 4, generator=generator)
    return Batch(images, torch.arange(COUNT) % 3, torch.arange(COUNT))


def make_learner(**settings: Any) -> FabricLearner:
    model = network()
    config = TrainConfig(eps=EPS, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attack = Pgd(eps=EPS, steps=2, step=0.05, start="none")
    return FabricLearner(
        fabric.single_process("cpu"),
        config,
        model=model,
        optimizer=optimizer,
        attack=attack,
        kernel=Exponential(2.0),
        num_classes=3,
    )


def test_warm_up_and_ramps_rise_linearly_to_their_final_value() -> None:
    config = TrainConfig(
        epochs=10, lr=1.0, schedule="constant", warmup=0.1, eps_ramp=0.4, alpha_ramp=0.5
    )
    paces = [settings_at(config, step, steps_per_epoch=10) for step in range(100)]
    assert [paces[step].learning_rate for step in (0, 4, 9, 99)] == pytest.approx([0.1, 0.5, 1, 1])
    assert [paces[step].eps_fraction for step in (0, 19, 39, 40, 99)] == pytest.approx(
        [1 / 40, 0.5, 1, 1, 1]
    )
    assert [paces[step].alpha_fraction for step in (0, 24, 49, 99)] == pytest.approx(
        [0.02, 0.5, 1, 1]
    )
    assert settings_at(TrainConfig(schedule="constant", lr=0.5), 0, 10) == StepSettings(
        0.5, 1.0, 1.0
    )


def test_schedule_and_warm_up_are_multiplied() -> None:
    config = TrainConfig(epochs=1, lr=1.0, schedule="cosine", warmup=0.5)
    plain = msgspec.structs.replace(config, warmup=0.0)
    assert settings_at(config, 24, 100).learning_rate == pytest.approx(
        0.5 * settings_at(plain, 24, 100).learning_rate
    )


def test_ramps_scale_the_radius_of_the_attack_and_alpha() -> None:
    learner = make_learner()
    learner.begin_step(
        0, 0, StepSettings(0.1, eps_fraction=0.25, alpha_fraction=0.5), batch_size=COUNT
    )
    attacked = learner.attack(batch(), cross_entropy)
    moved = (attacked.images - batch().images).abs().max()
    assert moved <= 0.25 * EPS + 1e-6
    assert moved > 0.2 * EPS
    assert learner.kernel == Exponential(1.0)
    learner.begin_step(0, 1, StepSettings(0.1), batch_size=COUNT)
    assert learner.kernel == Exponential(2.0)
    assert (learner.attack(batch(), cross_entropy).images - batch().images).abs().max() > 0.9 * EPS


def test_weight_decay_can_exclude_biases_and_norms() -> None:
    model = network()
    (everything,) = parameter_groups(TrainConfig(), model)
    assert len(instance_of(list, everything["params"])) == 6
    weights, others = parameter_groups(TrainConfig(decay="weights"), model)
    assert {tuple(parameter.shape) for parameter in instance_of(list, weights["params"])} == {
        (10, 16),
        (3, 10),
    }
    assert others["weight_decay"] == 0
    assert len(instance_of(list, others["params"])) == 4

    optimizer = make_optimizer(
        TrainConfig(optimizer="sgd", lr=0.5, momentum=0, weight_decay=0.1, decay="weights"), model
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if parameter.ndim > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_the_norm_of_gradients_is_clipped(limit: float) -> None:
    free, held = make_learner(), make_learner(clip_grad=limit)
    steps = []
    for learner in (free, held):
        before = nn.utils.parameters_to_vector(learner.model.parameters()).detach().clone()
        learner.begin_step(0, 0, StepSettings(0.1), batch_size=COUNT)
        Natural().step(learner, batch())
        steps.append(
            (nn.utils.parameters_to_vector(learner.model.parameters()).detach() - before) / 0.1
        )
    length = steps[0].norm()
    torch.testing.assert_close(
        steps[1], steps[0] * min(1.0, limit / float(length)), atol=1e-6, rtol=1e-3
    )


def test_label_smoothing_mixes_labels_with_all_classes() -> None:
    learner, logits, labels = (
        make_learner(label_smoothing=0.3),
        torch.randn(4, 3),
        torch.tensor([0, 1, 2, 0]),
    )
    target = 0.7 * functional.one_hot(labels, 3) + 0.1
    torch.testing.assert_close(
        learner.label_loss(logits, labels), -(target * logits.log_softmax(dim=1)).sum(dim=1)
    )
    torch.testing.assert_close(
        make_learner().label_loss(logits, labels), cross_entropy(logits, labels)
    )


def test_weights_are_limited_to_max_weight() -> None:
    logits, labels = 5 * torch.randn(64, 3), torch.arange(64) % 3
    evidence, margins = Evidence(logits, labels), probability_margin(logits, labels)
    free = (-2 * margins).exp()
    assert free.max() > 2
    torch.testing.assert_close(make_learner(max_weight=2.0).weights(evidence), free.clamp(max=2))
    normalised = make_learner(normalize="batch", max_weight=2.0).weights(evidence)
    torch.testing.assert_close(normalised, (free / free.mean()).clamp(max=2))


@pytest.mark.parametrize("terms", ["kl", "nat", "both", "none"])
def test_the_terms_of_trades_select_what_is_weighted(
    terms: Literal["kl", "nat", "both", "none"],
) -> None:
    on, beta = batch(), 6.0
    learner = make_learner()
    learner.begin_step(0, 0, StepSettings(0.0), batch_size=COUNT)
    seen: dict[str, Any] = {}
    forward = learner.forward

    def watched(images: Tensor) -> Tensor:
        logits = forward(images)
        seen.setdefault("clean" if torch.equal(images, on.images) else "adversarial", logits)
        return logits

    with patch.object(learner, "forward", watched):
        report = Trades(beta, terms=terms).step(learner, on)
    clean, adversarial = (seen[name].detach() for name in ("clean", "adversarial"))
    natural = cross_entropy(clean, on.labels)
    p, q = clean.log_softmax(dim=1), adversarial.log_softmax(dim=1)
    kl = beta * (p.exp() * (p - q)).sum(dim=1)
    s = (-2 * probability_margin(adversarial, on.labels)).exp()
    assert s.std() > 0.01
    expected = {
        "kl": natural + s * kl,
        "nat": s * natural + kl,
        "both": s * (natural + kl),
        "none": natural + kl,
    }
    torch.testing.assert_close(report.losses, expected[terms])


def test_the_inner_loss_of_trades_selects_the_objective_of_the_attack() -> None:
    seen_objectives = []
    for name in ("kl", "ce"):
        learner = make_learner(weight_grad="none")
        learner.begin_step(0, 0, StepSettings(0.0), batch_size=COUNT)
        attack = learner.attack

        def watched(
            on: Batch, objective: Objective, attack: Callable[..., Any] = attack
        ) -> AttackResult:
            seen_objectives.append(objective)
            result: AttackResult = attack(on, objective)
            return result

        with patch.object(learner, "attack", watched):
            Trades(climbs=name).step(learner, batch())
    assert type(seen_objectives[0]).__name__ == "KlObjective"
    assert seen_objectives[1] is cross_entropy


def test_the_moving_average_matches_its_definition_and_is_restored_equal() -> None:
    model, average = network(), WeightAverage(network(), 0.9)
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    for update in range(1, 6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model.get_buffer("2.running_mean").add_(1)
        model.get_buffer("2.num_batches_tracked").add_(1)
        average.update(model)
        keep = min(0.9, (1 + update) / (10 + update))
        expected = {
            k: keep * expected[k] + (1 - keep) * v.double() for k, v in model.state_dict().items()
        }
    for name, tensor in average.model.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected[name], atol=1e-5, rtol=1e-5)
        else:
            assert int(tensor) == 5
    other = WeightAverage(network(), 0.9)
    other.load_state({name: tensor.clone() for name, tensor in average.state().items()})
    for part in (average, other):
        part.update(model)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            *(part.model.state_dict().values() for part in (average, other)), strict=True
        )
    )


@pytest.mark.parametrize("key", ["ema", "label_smoothing"])
def test_a_fraction_of_one_is_refused(key: str) -> None:
    with pytest.raises(BadInput, match="< 1"):
        resolve({key: 1.0})
