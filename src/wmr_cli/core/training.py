"""The step that most defenses share: weigh, take the mean, go backward, step."""

from .contracts import Batch, Learner, Losses, StepReport
from .margins import probability_margin


def descend(learner: Learner, batch: Batch, losses: Losses) -> StepReport:
    """Pay plain + weights * weighted per image; the mean is taken here and nowhere else."""
    weights = learner.weights(losses.evidence)
    paid = weights * losses.weighted
    if losses.plain is not None:
        paid = losses.plain + paid
    learner.backward(paid.mean())
    learner.optimizer_step()
    logits = losses.evidence.logits.detach()
    return StepReport(
        losses=paid.detach(),
        weights=weights.detach(),
        margins=probability_margin(logits, batch.labels),
        correct=logits.argmax(dim=1) == batch.labels,
    )
