"""Fast adversarial training."""

from dataclasses import dataclass

from ...core.losses import cross_entropy
from ...core.pgd import UniformStartPgd
from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass(frozen=True)
class FastTraining:
    """PGD training with one step from a uniform start; the step is `reach` times eps.

    Objective: `weight(x') * CE(x')`, with x' one step up `weight * CE`
    Cost: 2
    Good for: speed; with a large eps or a long run it may lose all robustness to stronger attacks at once
    Reference: Wong et al. 2020, arXiv:2001.03994
    """

    reach: float = 1.25

    traits = DefenseTraits(uses_attack=False)

    def __post_init__(self) -> None:
        if self.reach <= 0:
            raise BadInput(f"reach of fgsm-rs is {self.reach:g}", hint="reach is positive")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        one_step = UniformStartPgd(learner.norm, learner.eps, self.reach * learner.eps, steps=1)
        attacked = learner.attack(batch, cross_entropy, one_step)
        logits = learner.forward(attacked.images)
        loss = learner.label_loss(logits, batch.labels)
        return step_weighted(
            learner,
            batch,
            Losses(weighted=loss, evidence=Evidence(logits, batch.labels, batch.index, loss=loss)),
        )
