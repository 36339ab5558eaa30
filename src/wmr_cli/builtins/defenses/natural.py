"""Training without attacks, the baseline of baselines."""

from dataclasses import dataclass

from ...core.contracts import Batch, Evidence, Learner, Losses, StepReport
from ...core.training import descend


@dataclass(frozen=True)
class Natural:
    """Cross-entropy on clean images. One forward-backward pass per step. The kernel weighs images by their clean margin."""

    def step(self, learner: Learner, batch: Batch) -> StepReport:
        logits = learner.forward(batch.images)
        loss = learner.label_loss(logits, batch.labels)
        evidence = Evidence(logits, batch.labels, batch.index, clean_logits=logits, loss=loss)
        return descend(learner, batch, Losses(weighted=loss, evidence=evidence))
