"""The step that most defenses share: weigh, take the mean, go backward, step."""

from dataclasses import replace

import torch
from torch import Tensor

from .losses import probability_margin
from .protocols import Batch, Evidence, Learner, Losses, StepReport


def descend(learner: Learner, batch: Batch, losses: Losses) -> StepReport:
    """Pay for the losses and step."""
    report = pay(learner, batch, losses)
    learner.optimizer_step()
    return report


def pay(learner: Learner, batch: Batch, losses: Losses) -> StepReport:
    """Pay plain + weights * weighted per image, without a step yet; the mean is taken here and nowhere else."""
    evidence = replace(
        losses.evidence, loss=losses.weighted
    )  # who weighs by a loss weighs by the one that is weighted
    weights = learner.weights(evidence)
    paid = weights * losses.weighted
    if losses.plain is not None:
        paid = losses.plain + paid
    learner.backward(learner.mean(paid))
    logits = losses.evidence.logits.detach()
    return StepReport(
        losses=paid.detach(),
        weights=weights.detach(),
        margins=probability_margin(logits, batch.labels),
        correct=logits.argmax(dim=1) == batch.labels,
        clean_correct=_clean_correct(losses.evidence),
    )


def terms_of(
    first: Tensor, second: Tensor, evidence: Evidence, *, weighs_first: bool, weighs_second: bool
) -> Losses:
    """A loss of two terms (N,) each, with the weights on either, both or none."""
    if weighs_first and weighs_second:
        return Losses(weighted=first + second, evidence=evidence)
    if weighs_first:
        return Losses(weighted=first, evidence=evidence, plain=second)
    if weighs_second:
        return Losses(weighted=second, evidence=evidence, plain=first)
    return Losses(weighted=torch.zeros_like(first), evidence=evidence, plain=first + second)


def _clean_correct(evidence: Evidence) -> Tensor | None:
    """Which images (N,) are right without an attack, where both were seen."""
    if evidence.clean_logits is None or evidence.clean_logits is evidence.logits:
        return None
    return evidence.clean_logits.detach().argmax(dim=1) == evidence.labels
