"""`check_defense` passes a defense that keeps its promises, and names the one promise that another breaks."""

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


class Sound:
    """Adversarial training. Each method is a promise that a mutant below breaks."""

    traits = DefenseTraits(provides=frozenset({"steps_survived"}))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        return self.reported(self.descended(learner, batch, self.losses(learner, batch)))

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        attacked = learner.attack(batch, cross_entropy)
        logits = learner.forward(attacked.images)
        evidence = Evidence(
            logits, batch.labels, batch.index, steps_survived=attacked.steps_survived
        )
        return Losses(self.loss(learner, logits, batch.labels), evidence)

    def loss(self, learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
        return learner.label_loss(logits, labels)

    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        return step_weighted(learner, batch, losses)

    def reported(self, report: StepReport) -> StepReport:
        return report


class NeverSteps(Sound):
    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        return backward_weighted(learner, batch, losses)


class StepsWithoutGradient(Sound):
    """In a network whose batch statistics stand still, too, or they would move."""

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        with learner.attack_mode():
            return super().losses(learner, batch)

    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        report = backward_weighted(learner, batch, losses)
        learner.model.zero_grad()
        learner.optimizer_step()
        return report


class PaysPerImage(Sound):
    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        learner.backward(losses.weighted)
        return backward_weighted(learner, batch, losses)


class PaysNothingFinite(Sound):
    def loss(self, learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels) / 0


class Climbs(Sound):
    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        report = backward_weighted(learner, batch, losses)
        for parameter in learner.model.parameters():
            not_none(parameter.grad).neg_()
        learner.optimizer_step()
        return report


class ReportsMean(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, losses=report.losses.mean())


class ReportsGraph(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, weights=report.weights.clone().requires_grad_())


class ReportsNan(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, margins=report.margins / 0)


class ReportsNegativeWeights(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, weights=-report.weights)


class ReportsLogitMargins(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, margins=10 * report.margins)


class ReportsAllRight(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, correct=torch.ones_like(report.correct))


class ReportsHalf(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, losses=report.losses / 2)


class ReportsOneClean(Sound):
    def reported(self, report: StepReport) -> StepReport:
        return replace(report, clean_correct=report.correct[:1])


class DeclaresReplays(Sound):
    traits = DefenseTraits(replays=4)


class DeclaresNoAttack(Sound):
    traits = DefenseTraits(uses_attack=False)


class DeclaresMoreEvidence(Sound):
    traits = DefenseTraits(provides=frozenset({"clean_logits"}))


class WithoutTraits:
    step = Sound.step
    losses = Sound.losses
    loss = Sound.loss
    descended = Sound.descended
    reported = Sound.reported


class TraitsOfAKernel(WithoutTraits):
    traits = KernelTraits()


class KnowsOf01(Sound):
    knows = ("steps_survived",)


class UsesAttackOf01(Sound):
    uses_attack = True


class OneGradientOf01(Sound):
    one_gradient = True


class ReplaysOf01(Sound):
    replays = 1


class PerRankOf01(Sound):
    per_rank = True


class WarmupOf01(Sound):
    warmup = 3


class HalfAState(Sound):
    def state(self) -> dict[str, Tensor]:
        return {}


class HidesIndex(Sound):
    def losses(self, learner: Learner, batch: Batch) -> Losses:
        losses = super().losses(learner, batch)
        return replace(losses, evidence=replace(losses.evidence, index=None))


class HidesLoss(Sound):
    """Weighs by itself instead of by `backward_weighted`."""

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        losses = super().losses(learner, batch)
        learner.weights(losses.evidence)
        return losses


class Gambles(Sound):
    def loss(self, learner: Learner, logits: Tensor, labels: Tensor) -> Tensor:
        return random.random() * super().loss(learner, logits, labels)


class WritesImages(Sound):
    def losses(self, learner: Learner, batch: Batch) -> Losses:
        batch.images.mul_(0.9)
        return super().losses(learner, batch)


class FearsKernels(Sound):
    """Pays twice as soon as weights could have a gradient."""

    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        is_weighted = learner.kernel(losses.evidence).requires_grad
        return super().descended(
            learner, batch, replace(losses, weighted=losses.weighted * (1 + is_weighted))
        )


class MultipliesLogarithms(Sound):
    """0 times minus infinity is not a number."""

    def descended(self, learner: Learner, batch: Batch, losses: Losses) -> StepReport:
        learner.model.get_parameter("0.bias").data += 0 * learner.kernel(losses.evidence).mean()
        return super().descended(learner, batch, losses)


class Forgets(Sound):
    def __init__(self) -> None:
        self.seen = torch.zeros(1)

    def losses(self, learner: Learner, batch: Batch) -> Losses:
        self.seen = self.seen + 1
        return super().losses(learner, batch)

    def state(self) -> dict[str, Tensor]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.seen = torch.zeros(1)


class Remembers(Forgets):
    def load_state(self, state: dict[str, Tensor]) -> None:
        self.seen = state["seen"]


class ReplaysTwice(Sound):
    traits = DefenseTraits(provides=frozenset({"steps_survived"}), replays=2)

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        super().step(learner, batch)
        return super().step(learner, batch)


MUTANTS = {
    NeverSteps: "takes no optimizer step",
    StepsWithoutGradient: "nothing moved",
    PaysPerImage: "one number, not one per image",
    PaysNothingFinite: "loss of a step is not finite",
    Climbs: "the loss went from",
    ReportsMean: "losses of the report is not one detached value per image",
    ReportsGraph: "weights of the report is not one detached value per image",
    ReportsOneClean: "clean_correct of the report is not one detached value per image",
    ReportsNan: "margins of the report are not finite",
    ReportsNegativeWeights: "weights of the report are negative",
    ReportsLogitMargins: r"margins of the report are not in \[-1, 1\]",
    ReportsAllRight: "correct and margins of the report contradict each other",
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
    HalfAState: "one of `state` and `load_state`",
    HidesIndex: "evidence has no index",
    HidesLoss: "evidence has no loss",
    Gambles: "same seed gives another step",
    WritesImages: "wrote into the images",
    FearsKernels: "weights of alpha = 0 give another step than no weights",
    MultipliesLogarithms: "log-weight is -inf, makes the network not finite",
    Forgets: "does not come back from `state",
}


@pytest.mark.parametrize("sound", [Sound, Remembers, ReplaysTwice], ids=lambda kind: kind.__name__)
def test_a_defense_that_keeps_its_promises_passes(
    sound: type[Remembers | ReplaysTwice | Sound],
) -> None:
    check_defense(sound())


@pytest.mark.parametrize(
    ("mutant", "broken"), MUTANTS.items(), ids=lambda part: getattr(part, "__name__", "")
)
def test_a_broken_promise_is_named(mutant: type[Any], broken: str) -> None:
    with pytest.raises(AssertionError, match=broken):
        check_defense(mutant())
