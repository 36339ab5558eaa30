"""PGD adversarial training."""

from dataclasses import dataclass

from ...core.contracts import Batch, Evidence, Learner, Losses, StepReport
from ...core.losses import cross_entropy
from ...core.training import descend


@dataclass(frozen=True)
class PgdTraining:
    """mean of weight(x') * CE(x'), with x' climbing the same (Madry et al. 2018, arXiv:1706.06083; weighted: Zeng et al. 2021).

    K + 1 forward-backward passes per step for an attack of K steps.
    """

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels)
        evidence = Evidence(logits, batch.labels, batch.index, steps_survived=attacked.steps_survived, loss=loss)
        return descend(learner, batch, Losses(weighted=loss, evidence=evidence))
