"""Auto-PGD: PGD that adapts its step size per image (Croce and Hein 2020, arXiv:2003.01690)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .losses import ranking_scores
from .norms import Norm
from .pgd import input_gradient, project_to_ball
from .protocols import AttackResult, Batch, Objective
from .restarts import is_stronger

# Checkpoints, as fractions of all steps (section 3.1 of the paper)
FIRST_INTERVAL = 0.22
INTERVAL_DECREASE = 0.03
MIN_INTERVAL = 0.06

STEP_FRACTION = 0.75
"""Fraction of a move that is the new step; the rest is momentum."""
MIN_RISING_FRACTION = 0.75
"""The step is halved if the objective rose in a smaller fraction of steps since the last check."""


@dataclass(frozen=True)
class Point:
    """An iterate: images (N, C, H, W), logits (N, C), ranking scores (N,), and gradient."""

    images: Tensor
    logits: Tensor
    ranks: Tensor
    gradient: Tensor

    def replace_rows(self, mask: Tensor, other: "Point") -> "Point":
        """Take the rows of the mask (N,) from another point."""
        wide = mask[:, None, None, None]
        return Point(
            torch.where(wide, other.images, self.images),
            torch.where(mask[:, None], other.logits, self.logits),
            torch.where(mask, other.ranks, self.ranks),
            torch.where(wide, other.gradient, self.gradient),
        )


def checkpoints(steps: int) -> list[int]:
    """Return the steps after which progress is checked: fractions 0.22, 0.41, 0.57, … of all."""
    found = []
    previous = 0.0
    fraction = FIRST_INTERVAL
    while fraction <= 1:
        # the fractions are hundredths: rounding keeps 0.57 * 100 from becoming 58
        found.append(math.ceil(round(fraction * steps, 6)))
        interval = max(fraction - previous - INTERVAL_DECREASE, MIN_INTERVAL)
        previous = fraction
        fraction = fraction + interval
    return sorted(set(found))


def run_auto_pgd(
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    start: Tensor,
    *,
    norm: Norm,
    eps: float,
    steps: int,
) -> AttackResult:
    """Maximise `objective` from `start`, with a step per image that begins at 2 * eps.

    Returns the highest-ranked misclassified iterate of each image, else the highest-ranked one.
    At a checkpoint the step is halved, and the search returns to the best point, for images whose
    objective rose too seldom, or which found nothing better with the current step.
    """
    images = batch.images
    labels = batch.labels
    check_steps = checkpoints(steps)
    current = _evaluate(model, start.detach(), labels, objective, with_gradient=steps > 0)
    best = current  # highest rank so far: the search returns to it
    strongest = current  # misclassified iterates first: the attack returns it
    previous_images = current.images
    steps_survived = torch.zeros_like(labels)
    rises = torch.zeros_like(labels)
    step = images.new_full((len(images), 1, 1, 1), 2 * eps)
    # the second condition holds only if the step was not halved at the previous checkpoint
    was_halved = torch.zeros_like(labels, dtype=torch.bool)
    last_best_ranks = best.ranks
    last_check = 0
    for done in range(1, steps + 1):
        steps_survived = steps_survived + (current.logits.argmax(dim=1) == labels)
        ascended = current.images + step * norm.direction(current.gradient)
        target = project_to_ball(images, ascended, norm, eps)
        # the first step has no previous one, and so no momentum
        fraction = STEP_FRACTION if done > 1 else 1.0
        moved = (
            current.images
            + fraction * (target - current.images)
            + (1 - fraction) * (current.images - previous_images)
        )
        moved = project_to_ball(images, moved, norm, eps)
        previous_images = current.images
        previous_ranks = current.ranks
        # no step follows the last point, so it needs no gradient
        current = _evaluate(model, moved, labels, objective, with_gradient=done < steps)
        rises = rises + (current.ranks > previous_ranks)
        best = best.replace_rows(current.ranks > best.ranks, current)
        improves = is_stronger(
            current.logits, current.ranks, strongest.logits, strongest.ranks, labels
        )
        strongest = strongest.replace_rows(improves, current)
        if done in check_steps:
            rose_seldom = rises < MIN_RISING_FRACTION * (done - last_check)
            is_stuck = ~was_halved & (best.ranks == last_best_ranks)
            was_halved = rose_seldom | is_stuck
            step = torch.where(was_halved[:, None, None, None], step / 2, step)
            current = current.replace_rows(was_halved, best)
            last_best_ranks = best.ranks
            last_check = done
            rises = torch.zeros_like(rises)
    return AttackResult(strongest.images, steps_survived, strongest.logits)


def _evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, *, with_gradient: bool
) -> Point:
    """Compute logits, ranking scores and, if needed, the gradient of these images."""
    if with_gradient:
        gradient, logits = input_gradient(model, images, labels, objective)
    else:
        with torch.no_grad():
            logits = model(images)
        gradient = torch.zeros_like(images)
    return Point(images, logits, ranking_scores(objective, logits, labels), gradient)
