"""`pgd`, `fgsm-rs` and `natural`: cross-entropy on adversarial or on clean images."""

from dataclasses import dataclass

from ...core.losses import cross_entropy
from ...core.pgd import UniformStartPgd
from ...core.protocols import Batch, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass(frozen=True)
class PgdTraining:
    """Adversarial training.

    Objective: `weight(x') * CE(x')`, with x' maximising the same
    Cost: K + 1
    Good for: robust accuracy with nothing to tune but the attack
    Reference: Madry et al. 2018, arXiv:1706.06083; weighted: Zeng et al. 2021, arXiv:2010.12989
    """

    traits = DefenseTraits(provides=frozenset({"steps_survived"}), mixes_labels=True)

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels, batch.second)
        evidence = batch.evidence(logits, steps_survived=attacked.steps_survived)
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))


@dataclass(frozen=True)
class FastTraining:
    """Adversarial training with one step from a uniform start; the step size is `reach` times eps.

    Objective: `weight(x') * CE(x')`, with x' one step up `weight * CE`
    Cost: 2
    Good for: speed; a large eps or a long run may lose all robustness to stronger attacks at once
    Reference: Wong et al. 2020, arXiv:2001.03994
    """

    reach: float = 1.25

    traits = DefenseTraits(uses_attack=False, mixes_labels=True)

    def __post_init__(self) -> None:
        if self.reach <= 0:
            raise BadInput(f"`reach` of fgsm-rs is {self.reach:g}", hint="`reach` is positive")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        one_step = UniformStartPgd(learner.norm, learner.eps, self.reach * learner.eps, steps=1)
        attacked = learner.attack(batch, cross_entropy, one_step)
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels, batch.second)
        evidence = batch.evidence(logits)
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))


@dataclass(frozen=True)
class Natural:
    """Training without attacks. The kernel weights images by their clean margin.

    Objective: `weight(x) * CE(x)`
    Cost: 1
    Good for: the natural accuracy that a defense gives up
    """

    traits = DefenseTraits(
        provides=frozenset({"clean_logits"}), uses_attack=False, mixes_labels=True
    )

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        logits = learner.forward(batch.images)
        loss = learner.label_loss(logits, batch.labels, batch.second)
        evidence = batch.evidence(logits, clean_logits=logits)
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))
