"""The step that most defenses share: weights, mean, backward pass, optimizer step."""

from dataclasses import replace

import torch
from torch import Tensor

from .losses import probability_margin
from .protocols import Batch, Evidence, Learner, Losses, StepReport


def step_weighted(learner: Learner, batch: Batch, losses: Losses) -> StepReport:
    """Run the backward pass of the weighted losses, then step the optimizer."""
    report = backward_weighted(learner, batch, losses)
    learner.optimizer_step()
    return report


def backward_weighted(learner: Learner, batch: Batch, losses: Losses) -> StepReport:
    """Run the backward pass of mean(plain + weights * weighted), without an optimizer step."""
    # loss-based kernels must see the loss that their weights multiply, so it is set here and not
    # by each defense
    evidence = replace(losses.evidence, loss=losses.weighted)
    weights = learner.weights(evidence)
    total = weights * losses.weighted
    if losses.plain is not None:
        total = losses.plain + total
    # the only place where a mean is taken: everything before is per image
    learner.backward(learner.mean(total))
    logits = losses.evidence.logits.detach()
    return StepReport(
        losses=total.detach(),
        weights=weights.detach(),
        margins=probability_margin(logits, batch.labels),
        correct=logits.argmax(dim=1) == batch.labels,
        clean_correct=_clean_correct(losses.evidence),
    )


def weight_terms(
    first: Tensor, second: Tensor, evidence: Evidence, *, weights_first: bool, weights_second: bool
) -> Losses:
    """Return the loss of two terms (N,), with the weights on either, both or none of them."""
    if weights_first and weights_second:
        return Losses(weighted=first + second, evidence=evidence)
    if weights_first:
        return Losses(weighted=first, evidence=evidence, plain=second)
    if weights_second:
        return Losses(weighted=second, evidence=evidence, plain=first)
    return Losses(weighted=torch.zeros_like(first), evidence=evidence, plain=first + second)


def _clean_correct(evidence: Evidence) -> Tensor | None:
    """Return which images (N,) are correct without the attack, if clean logits were computed."""
    # without an attack both logits are the same tensor, and `correct` has it already
    if evidence.clean_logits is None or evidence.clean_logits is evidence.logits:
        return None
    return evidence.clean_logits.detach().argmax(dim=1) == evidence.labels
