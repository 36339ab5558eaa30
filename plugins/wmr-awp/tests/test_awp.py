"""The defense against its contract, against numbers by hand, and against its base."""

import ast
import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wmr_awp
from wmr_awp.defense import Awp, awp
from wmr_cli import BadInput, BrokenContract, Spec, create
from wmr_cli.core import (
    Attack,
    AttackResult,
    Batch,
    DefenseTraits,
    HasState,
    Learner,
    Objective,
    StepReport,
)
from wmr_cli.testing import RecordingLearner, check_defense, tiny_batch, tiny_model

BASES = (
    "natural",
    "pgd",
    "trades:beta=2",
    "mart",
    "alp",
    "combined",
    "fgsm-rs",
    "iaat:warmup=0,steps=2",
)


def make_awp(base: str, **params: Any) -> Awp:
    return awp(Spec.parse(base), **params)


@pytest.mark.parametrize("base", BASES)
def test_every_base_that_fits_keeps_the_contract(base: str) -> None:
    check_defense(make_awp(base))


class Linear(nn.Module):
    def __init__(self, weight: list[list[float]], bias: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.bias = nn.Parameter(torch.tensor(bias))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T + self.bias


def errors(
    weight: list[list[float]], bias: list[float], pixels: list[float], label: int
) -> list[float]:
    """p - y of a linear model with two classes."""
    logits = [
        sum(w * x for w, x in zip(row, pixels, strict=True)) + b
        for row, b in zip(weight, bias, strict=True)
    ]
    probabilities = [math.exp(logit) / sum(map(math.exp, logits)) for logit in logits]
    return [p - (position == label) for position, p in enumerate(probabilities)]


def test_a_step_is_the_one_computed_by_hand() -> None:
    weight = [[0.5, -1.0], [2.0, 0.25]]
    bias = [0.1, -0.2]
    pixels = [0.75, 0.5]
    gamma = 0.2
    lr = 0.1
    model = Linear(weight, bias)
    make_awp("natural", gamma=gamma).step(
        RecordingLearner(model),
        Batch(torch.tensor(pixels).view(1, 1, 1, 2), torch.tensor([0]), torch.tensor([7])),
    )

    gradient = [[error * x for x in pixels] for error in errors(weight, bias, pixels, label=0)]
    distance = (
        gamma
        * math.dist([w for row in weight for w in row], [0] * 4)
        / math.dist([g for row in gradient for g in row], [0] * 4)
    )
    moved = [
        [w + distance * g for w, g in zip(*rows, strict=True)]
        for rows in zip(weight, gradient, strict=True)
    ]
    moved_errors = errors(moved, bias, pixels, label=0)
    expected = [
        [w - lr * error * x for w, x in zip(row, pixels, strict=True)]
        for row, error in zip(weight, moved_errors, strict=True)
    ]
    torch.testing.assert_close(model.weight.detach(), torch.tensor(expected))
    torch.testing.assert_close(
        model.bias.detach(),
        torch.tensor([b - lr * e for b, e in zip(bias, moved_errors, strict=True)]),
    )
    assert moved[0][0] != pytest.approx(
        weight[0][0], abs=0.05
    )  # the perturbation is not negligible


class InTrainMode(RecordingLearner):
    """Attacks see the network in train mode: dropout draws, and batch-norm remembers."""

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        yield self.model

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        with torch.no_grad():
            self.model(batch.images)
        return AttackResult((batch.images + 0.03).clamp(0, 1), torch.ones_like(batch.labels))


@pytest.mark.parametrize("kind", [RecordingLearner, InTrainMode])
@pytest.mark.parametrize("base", BASES)
def test_without_a_perturbation_it_is_the_base_bit_for_bit(
    base: str, kind: type[RecordingLearner]
) -> None:
    results = []
    for defense in (create("defense", base), make_awp(base, gamma=0.0)):
        model = tiny_model().train()
        learner = kind(model)
        torch.manual_seed(5)
        reports = [defense.step(learner, tiny_batch()) for _ in range(3)]
        results.append(
            [
                *model.state_dict().values(),
                *(report.losses for report in reports),
                torch.get_rng_state(),
            ]
        )
    for expected, found in zip(*results, strict=True):
        assert torch.equal(expected, found)


class Watching(RecordingLearner):
    """Notes the weights at every turn."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.seen: dict[str, list[dict[str, Tensor]]] = {
            "forward": [],
            "attack": [],
            "attack_mode": [],
            "optimizer_step": [],
        }

    def note(self, what: str) -> None:
        self.seen[what].append(
            {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        )

    def forward(self, images: Tensor) -> Tensor:
        self.note("forward")
        return super().forward(images)

    def attack(self, batch: Batch, objective: Objective, own: Attack | None = None) -> AttackResult:
        self.note("attack")
        return super().attack(batch, objective, own)

    @contextmanager
    def attack_mode(self) -> Iterator[nn.Module]:
        with super().attack_mode() as network:
            self.note("attack_mode")
            yield network

    def optimizer_step(self) -> None:
        self.note("optimizer_step")
        super().optimizer_step()


def differs(weights: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> list[str]:
    return [name for name in start if not torch.equal(weights[name], start[name])]


def test_weights_move_by_gamma_for_the_loss_alone_and_come_back_exactly() -> None:
    model = tiny_model().train()
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    learner = Watching(model)
    make_awp("trades", gamma=0.02).step(learner, tiny_batch())
    large = [name for name, weight in start.items() if weight.ndim > 1]
    assert 0 < len(large) < len(start)
    assert len(learner.seen["attack"]) == 1
    assert len(learner.seen["attack_mode"]) == 2
    for what in ("attack", "attack_mode", "optimizer_step"):
        assert [differs(weights, start) for weights in learner.seen[what]] == [[]] * len(
            learner.seen[what]
        )
    assert [differs(weights, start) for weights in learner.seen["forward"]] == [
        [],
        [],
        large,
        large,
    ]
    for name in large:
        moved = learner.seen["forward"][-1][name] - start[name]
        assert float(moved.norm() / start[name].norm()) == pytest.approx(0.02, rel=1e-4)


def test_the_loss_is_higher_at_the_perturbed_weights() -> None:
    learner = RecordingLearner(tiny_model().train())
    make_awp("pgd", gamma=0.05).step(learner, tiny_batch())
    before, after = learner.losses
    assert after > before * 1.02


def test_batch_norm_hears_of_a_batch_once() -> None:
    model = tiny_model().train()
    make_awp("pgd").step(RecordingLearner(model), tiny_batch())
    assert int(model.get_buffer("1.num_batches_tracked")) == 1


class FailsTheSecondTime(RecordingLearner):
    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if len(self.losses) == 2:
            raise RuntimeError("out of memory")


def test_weights_are_put_back_when_the_step_fails() -> None:
    model = tiny_model().train()
    start = copy.deepcopy(dict(model.named_parameters()))
    with pytest.raises(RuntimeError, match="out of memory"):
        make_awp("pgd", gamma=0.1).step(FailsTheSecondTime(model), tiny_batch())
    assert differs(dict(model.named_parameters()), start) == []


def test_a_weight_without_a_gradient_stays() -> None:
    # its probability is 1 in float32, so that the gradient is zero
    model = Linear([[0.0, 0.0], [0.0, 0.0]], [200.0, 0.0])
    make_awp("natural", gamma=0.5).step(
        RecordingLearner(model), Batch(torch.ones(1, 1, 1, 2), torch.tensor([0]), torch.tensor([0]))
    )
    assert torch.equal(model.weight.detach(), torch.zeros(2, 2))


def test_for_warmup_epochs_it_is_the_base() -> None:
    learner = RecordingLearner(tiny_model().train())
    defense = make_awp("pgd", warmup=2)
    losses_per_step = []
    for learner.epoch in range(4):
        before = len(learner.losses)
        defense.step(learner, tiny_batch())
        losses_per_step.append(len(learner.losses) - before)
    assert losses_per_step == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ("free:m=2", "one backward pass updates its images and its weights"),
        ("yopo", "one backward pass updates its images and its weights"),
    ],
)
def test_a_base_that_does_not_fit_is_refused_with_the_reason(base: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        make_awp(base)


def test_a_base_that_replays_batches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaying:
        traits = DefenseTraits(replays=3)

    monkeypatch.setattr("wmr_awp.defense.create", lambda kind, spec: Replaying())
    with pytest.raises(BadInput, match="it steps 3 times on each batch"):
        make_awp("pgd")


def test_it_is_not_put_around_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = make_awp("pgd")
    monkeypatch.setattr("wmr_awp.defense.create", lambda kind, spec: inner)
    with pytest.raises(BadInput, match="perturbs the weights already"):
        make_awp("awp")


@pytest.mark.parametrize("params", [{"gamma": -0.1}, {"warmup": -1}])
def test_negative_numbers_are_refused(params: dict[str, float] | dict[str, int]) -> None:
    with pytest.raises(BadInput, match="awp: `gamma`"):
        make_awp("pgd", **params)


class Greedy:
    traits = DefenseTraits()

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        for _ in range(2):
            learner.backward(learner.forward(batch.images).square().mean())
            learner.optimizer_step()
        raise AssertionError("the second step must be refused")


def test_a_base_that_turns_out_to_step_twice_is_stopped_before_anything_moves() -> None:
    model = tiny_model().train()
    start = copy.deepcopy(dict(model.named_parameters()))
    with pytest.raises(BrokenContract, match="several optimizer steps on one batch"):
        Awp(Greedy()).step(RecordingLearner(model), tiny_batch())
    assert differs(dict(model.named_parameters()), start) == []


class Restless:
    """Attacks again where the network's own outputs say so."""

    calls = 0
    traits = DefenseTraits()

    def __deepcopy__(self, memo: dict[int, object]) -> "Restless":
        return Restless()

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        for _ in range(1 + self.calls):
            learner.attack(batch, lambda logits, labels: logits.sum(dim=1))
        learner.backward(learner.forward(batch.images).square().mean())
        learner.optimizer_step()
        values = torch.zeros_like(batch.labels, dtype=torch.float32)
        return StepReport(values, values, values, values.bool())


def test_attacks_that_were_not_made_at_the_old_weights_are_refused() -> None:
    base = Restless()
    base.calls = 1
    with pytest.raises(BrokenContract, match="attacks more often"):
        Awp(base).step(RecordingLearner(tiny_model().train()), tiny_batch())


@pytest.mark.parametrize("base", ["trades:beta=2", "natural", "iaat:warmup=3"])
def test_its_traits_are_those_of_its_base(base: str) -> None:
    assert make_awp(base).traits == create("defense", base).traits


@pytest.mark.parametrize(("own", "longer"), [(2, 3), (5, 5)])
def test_the_longer_warm_up_of_the_two_counts(own: int, longer: int) -> None:
    assert make_awp("iaat:warmup=3", warmup=own).traits.warmup_epochs == longer


def test_it_has_a_state_exactly_where_its_base_has_one() -> None:
    assert isinstance(make_awp("iaat"), HasState)
    assert not isinstance(make_awp("trades"), HasState)


def test_what_the_base_remembers_is_remembered_once_and_saved() -> None:
    defense, base = (
        make_awp("iaat:warmup=0,steps=2,beta=1", gamma=0.0),
        create("defense", "iaat:warmup=0,steps=2,beta=1"),
    )
    for one in (defense, base):
        learner = RecordingLearner(tiny_model().train())
        for _ in range(3):
            one.step(learner, tiny_batch())
    again = make_awp("iaat")
    assert isinstance(defense, HasState)
    assert isinstance(base, HasState)
    assert isinstance(again, HasState)
    assert torch.equal(defense.state()["radii"], base.state()["radii"])
    assert float(base.state()["radii"].max()) > 0
    again.load_state(dict(defense.state()))
    assert torch.equal(again.state()["radii"], base.state()["radii"])


PUBLIC = ("wmr_cli.core", "wmr_cli.measures", "wmr_cli.testing")


def imported(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return modules | {
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }


@pytest.mark.parametrize(
    "path", sorted(Path(wmr_awp.__file__).parent.glob("*.py")), ids=lambda path: path.name
)
def test_nothing_private_is_imported(path: Path) -> None:
    ours = {module for module in imported(path) if module.split(".")[0] == "wmr_cli"}
    assert {
        module for module in ours if module != "wmr_cli" and not module.startswith(PUBLIC)
    } == set()
