"""PGD adversarial training."""

from dataclasses import dataclass

from ...core.losses import cross_entropy
from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted


@dataclass(frozen=True)
class PgdTraining:
    """Adversarial training.

    Objective: `weight(x') * CE(x')`, with x' climbing the same
    Cost: K + 1
    Good for: robust accuracy with nothing to tune but the attack
    Reference: Madry et al. 2018, arXiv:1706.06083; weighted: Zeng et al. 2021, arXiv:2010.12989
    """

    traits = DefenseTraits(provides=frozenset({"steps_survived"}))

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels)
        evidence = Evidence(
            logits, batch.labels, batch.index, steps_survived=attacked.steps_survived, loss=loss
        )
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))
