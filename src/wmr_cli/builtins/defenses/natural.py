"""Training without attacks, the baseline of baselines."""

from dataclasses import dataclass

from ...core.protocols import Batch, Evidence, Learner, Losses, StepReport
from ...core.traits import DefenseTraits
from ...core.weighted_step import step_weighted


@dataclass(frozen=True)
class Natural:
    """Training without attacks. The kernel weighs images by their clean margin.

    Objective: `weight(x) * CE(x)`
    Cost: 1
    Good for: the natural accuracy that a defense gives up
    """

    traits = DefenseTraits(provides=frozenset({"clean_logits"}), uses_attack=False)

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        logits = learner.forward(batch.images)
        loss = learner.label_loss(logits, batch.labels)
        evidence = Evidence(logits, batch.labels, batch.index, clean_logits=logits, loss=loss)
        return step_weighted(learner, batch, Losses(weighted=loss, evidence=evidence))
