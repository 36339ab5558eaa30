"""The step that most defenses share: weigh, take the mean, go backward, step."""

from torch import Tensor

from .contracts import Batch, Evidence, Learner, Losses, StepReport
from .margins import probability_margin


def descend(learner: Learner, batch: Batch, losses: Losses) -> StepReport:
    """Pay plain + weights * weighted per image; the mean is taken here and nowhere else."""
    weights = learner.weights(losses.evidence)
    paid = weights * losses.weighted
    if losses.plain is not None:
        paid = losses.plain + paid
    learner.backward(learner.mean(paid))
    learner.optimizer_step()
    logits = losses.evidence.logits.detach()
    return StepReport(
        losses=paid.detach(),
        weights=weights.detach(),
        margins=probability_margin(logits, batch.labels),
        correct=logits.argmax(dim=1) == batch.labels,
        began_correct=_began_correct(losses.evidence),
    )


def _began_correct(evidence: Evidence) -> Tensor | None:
    """Which images (N,) were right before the attack moved them; None where nothing attacked them."""
    if evidence.clean_logits is evidence.logits:
        return None
    if evidence.clean_logits is not None:
        return evidence.clean_logits.detach().argmax(dim=1) == evidence.labels
    return None if evidence.steps_survived is None else evidence.steps_survived > 0
