"""Clean and attacked images together."""

from dataclasses import dataclass

from ...core.losses import cross_entropy
from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted
from ...errors import BadInput


@dataclass(frozen=True)
class Combined:
    """Cross-entropy of clean and of attacked images. `rescale=false` leaves out the division.

    Objective: `(CE(x) + lam * weight(x') * CE(x')) / (1 + lam)`, with x' climbing `weight * CE`
    Cost: K + 2
    Good for: more natural accuracy than pgd, less robust accuracy
    Reference: Goodfellow et al. 2015, arXiv:1412.6572
    """

    lam: float = 1.0
    rescale: bool = True

    traits = DefenseTraits(provides=frozenset({"clean_logits", "steps_survived"}))

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise BadInput(f"lam of combined is {self.lam:g}", hint="lam is not negative")

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        attacked = learner.attack(batch, cross_entropy)
        clean, adversarial = learner.forward(batch.images), learner.forward(attacked.images)
        natural, robust = (
            learner.label_loss(logits, batch.labels) for logits in (clean, adversarial)
        )
        evidence = Evidence(
            adversarial,
            batch.labels,
            batch.index,
            clean_logits=clean,
            steps_survived=attacked.steps_survived,
            loss=robust,
        )
        total = 1 + self.lam if self.rescale else 1.0
        return step_weighted(
            learner,
            batch,
            Losses(weighted=self.lam * robust / total, evidence=evidence, plain=natural / total),
        )
