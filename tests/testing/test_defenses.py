"""`check_defense` accepts a correct defense and names the rule that each mutant violates."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.typed import not_none
from wmr_cli.core.losses import cross_entropy
from wmr_cli.core.protocols import Batch, Evidence, Learner, Losses, StepReport
from wmr_cli.core.traits import DefenseTraits, KernelTraits
from wmr_cli.core.weighted_step import backward_weighted, step_weighted
from wmr_cli.testing import check_defense


class CorrectDefense:
    """Adversarial training. Each mutant below overrides one method."""

    traits = DefenseTraits(provides=frozenset({"steps_survived"}))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        return self.finish_report(self.step_optimizer(learner, batch, self.losses(learner, batch)))

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        attacked = learner.attack(batch, cross_entropy)
        logits = learner.forward(attacked.images)
        evidence = Evidence(
            logits, batch.labels, batch.index, steps_survived=attacked.steps_survived
        )
        return Losses(self.loss(learner, logits, batch.labels), evidence)

    def loss(self, learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
        return learner.label_loss(logits, labels)

    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        return step_weighted(learner, batch, losses)

    def finish_report(self, report: StepReport) -> StepReport:
        return report


class IgnoresSecondLabels(CorrectDefense):
    """It declares that it trains on mixed images, and uses one of their labels."""

    traits = DefenseTraits(provides=frozenset({"steps_survived"}), mixes_labels=True)


class NeverSteps(CorrectDefense):
    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        return backward_weighted(learner, batch, losses)


class StepsWithoutGradient(CorrectDefense):
    """In eval mode, so that batch statistics do not change either."""

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        with learner.attack_mode():
            return super().losses(learner, batch)

    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        report = backward_weighted(learner, batch, losses)
        learner.model.zero_grad()
        learner.optimizer_step()
        return report


class BackwardPerImage(CorrectDefense):
    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        learner.backward(losses.weighted)
        return backward_weighted(learner, batch, losses)


class InfiniteLoss(CorrectDefense):
    def loss(self, learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels) / 0


class RaisesLoss(CorrectDefense):
    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        report = backward_weighted(learner, batch, losses)
        for parameter in learner.model.parameters():
            not_none(parameter.grad).neg_()
        learner.optimizer_step()
        return report


class ReportsMean(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, losses=report.losses.mean())


class ReportsGraph(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, weights=report.weights.clone().requires_grad_())


class ReportsNan(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, margins=report.margins / 0)


class ReportsNegativeWeights(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, weights=-report.weights)


class ReportsLogitMargins(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, margins=10 * report.margins)


class ReportsAllCorrect(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, correct=torch.ones_like(report.correct))


class ReportsHalf(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, losses=report.losses / 2)


class ReportsOneCleanResult(CorrectDefense):
    def finish_report(self, report: StepReport) -> StepReport:
        return replace(report, clean_correct=report.correct[:1])


class DeclaresReplays(CorrectDefense):
    traits = DefenseTraits(replays=4)


class DeclaresNoAttack(CorrectDefense):
    traits = DefenseTraits(uses_attack=False)


class DeclaresMoreEvidence(CorrectDefense):
    traits = DefenseTraits(provides=frozenset({"clean_logits"}))


class WithoutTraits:
    step = CorrectDefense.step
    losses = CorrectDefense.losses
    loss = CorrectDefense.loss
    step_optimizer = CorrectDefense.step_optimizer
    finish_report = CorrectDefense.finish_report


class TraitsOfAKernel(WithoutTraits):
    traits = KernelTraits()


class KnowsOf01(CorrectDefense):
    knows = ("steps_survived",)


class UsesAttackOf01(CorrectDefense):
    uses_attack = True


class OneGradientOf01(CorrectDefense):
    one_gradient = True


class ReplaysOf01(CorrectDefense):
    replays = 1


class PerRankOf01(CorrectDefense):
    per_rank = True


class WarmupOf01(CorrectDefense):
    warmup = 3


class StateWithoutLoadState(CorrectDefense):
    def state(self) -> dict[str, Tensor]:
        return {}


class OmitsIndex(CorrectDefense):
    def losses(self, learner: Learner, batch: Batch) -> Losses:
        losses = super().losses(learner, batch)
        return replace(losses, evidence=replace(losses.evidence, index=None))


class OmitsLoss(CorrectDefense):
    """Computes weights itself, without a loss in the evidence."""

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        losses = super().losses(learner, batch)
        learner.weights(losses.evidence)
        return losses


class RandomLoss(CorrectDefense):
    def loss(self, learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
        return random.random() * super().loss(learner, logits, labels)


class WritesImages(CorrectDefense):
    def losses(self, learner: Learner, batch: Batch) -> Losses:
        batch.images.mul_(0.9)
        return super().losses(learner, batch)


class DoublesLossWithGradient(CorrectDefense):
    """Doubles the loss if the weights have a gradient."""

    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        is_weighted = learner.kernel(losses.evidence).requires_grad
        return super().step_optimizer(
            learner, batch, replace(losses, weighted=losses.weighted * (1 + is_weighted))
        )


class UsesLogWeights(CorrectDefense):
    """Multiplies log-weights by 0: NaN where one is -inf."""

    def step_optimizer(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        learner.model.get_parameter("0.bias").data += 0 * learner.kernel(losses.evidence).mean()
        return super().step_optimizer(learner, batch, losses)


class IgnoresLoadedState(CorrectDefense):
    def __init__(self) -> None:
        self.seen = torch.zeros(1)

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        self.seen = self.seen + 1
        return super().losses(learner, batch)

    def state(self) -> dict[str, Tensor]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.seen = torch.zeros(1)


class RestoresState(IgnoresLoadedState):
    def load_state(self, state: dict[str, Tensor]) -> None:
        self.seen = state["seen"]


class ReplaysTwice(CorrectDefense):
    traits = DefenseTraits(provides=frozenset({"steps_survived"}), replays=2)

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        super().step(learner, batch)
        return super().step(learner, batch)


class TraitInTheClass(CorrectDefense):
    weight_factor = 6.0


class MisspeltTrait(CorrectDefense):
    warmup_epoch = 10


class MisspeltAbility(CorrectDefense):
    def states(self) -> dict[str, Tensor]:
        return {}


MUTANTS = {
    TraitInTheClass: "trait `weight_factor` as an attribute of its class",
    MisspeltTrait: "`warmup_epoch`.*`warmup_epochs`",
    MisspeltAbility: "`states`.*`state`",
    IgnoresSecondLabels: "mixes_labels",
    NeverSteps: "takes no optimizer step",
    StepsWithoutGradient: "does not change the parameters",
    BackwardPerImage: "not one number",
    InfiniteLoss: "loss of a step is not finite",
    RaisesLoss: "steps change the loss from",
    ReportsMean: "losses of the report is not one detached value per image",
    ReportsGraph: "weights of the report is not one detached value per image",
    ReportsOneCleanResult: "clean_correct of the report is not one detached value per image",
    ReportsNan: "margins of the report are not finite",
    ReportsNegativeWeights: "weights of the report are negative",
    ReportsLogitMargins: r"margins of the report are not in \[-1, 1\]",
    ReportsAllCorrect: "correct and margins of the report contradict each other",
    ReportsHalf: "losses of the report have a mean of",
    DeclaresReplays: "`replays` is 4, but it steps 1 times",
    DeclaresNoAttack: "`uses_attack` is False",
    DeclaresMoreEvidence: "evidence has no clean_logits",
    WithoutTraits: r"without `traits`: add `traits = DefenseTraits\(\)`",
    TraitsOfAKernel: "`traits` of the defense is a KernelTraits",
    KnowsOf01: "`knows` of wmr 0.1.*provides",
    UsesAttackOf01: "`uses_attack` of wmr 0.1",
    OneGradientOf01: "`one_gradient` of wmr 0.1.*shares_gradient",
    ReplaysOf01: "`replays` of wmr 0.1",
    PerRankOf01: "`per_rank` of wmr 0.1.*state_per_rank",
    WarmupOf01: "`warmup` of wmr 0.1.*warmup_epochs",
    StateWithoutLoadState: "one of `state` and `load_state`",
    OmitsIndex: "evidence has no index",
    OmitsLoss: "evidence has no loss",
    RandomLoss: "same seed gives another step",
    WritesImages: "wrote into the images",
    DoublesLossWithGradient: "weights of alpha = 0 give another step than no weights",
    UsesLogWeights: "log-weights of -inf, the network is not finite",
    IgnoresLoadedState: "does not restore",
}


@pytest.mark.parametrize(
    "correct_defense", [CorrectDefense, RestoresState, ReplaysTwice], ids=lambda kind: kind.__name__
)
def test_a_correct_defense_passes(
    correct_defense: type[RestoresState | ReplaysTwice | CorrectDefense],
) -> None:
    check_defense(correct_defense())


@pytest.mark.parametrize(
    ("mutant", "problem"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_the_check_names_the_violated_rule(mutant: type[Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_defense(mutant())
