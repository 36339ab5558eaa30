"""Auto-PGD: projected ascent that chooses its own step, image by image (Croce and Hein 2020, arXiv:2003.01690)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .ascent import box, outranks
from .contracts import Attacked, Objective
from .norms import Norm
from .objectives import ranks

FIRST_SPAN, SPAN_LOSS, LEAST_SPAN = 0.22, 0.03, 0.06
"""Shares of all steps between two looks at the progress: the first, how much each next is shorter, and the shortest."""
OWN_SHARE = 0.75
"""How much of a move is the new step; the rest repeats the last move."""
RISING_SHARE = 0.75
"""An image whose objective rose in fewer steps than this share since the last look has too long a step."""


@dataclass(frozen=True)
class Point:
    """Where an attack stands: images (N, C, H, W), their logits (N, C), ranks (N,), and the gradient of the objective."""

    images: Tensor
    logits: Tensor
    ranks: Tensor
    gradient: Tensor

    def replaced(self, takes: Tensor, other: "Point") -> "Point":
        """This point, with the rows of the mask (N,) from another."""
        wide = takes[:, None, None, None]
        return Point(
            torch.where(wide, other.images, self.images),
            torch.where(takes[:, None], other.logits, self.logits),
            torch.where(takes, other.ranks, self.ranks),
            torch.where(wide, other.gradient, self.gradient),
        )


def checkpoints(steps: int) -> list[int]:
    """After how many steps the progress is looked at: at shares 0.22, 0.41, 0.57, … of all steps, rounded up."""
    found, before, share = [], 0.0, FIRST_SPAN
    while share <= 1:
        # the shares are hundredths: rounding keeps 0.57 * 100 from becoming 58
        found.append(math.ceil(round(share * steps, 6)))
        before, share = share, share + max(share - before - SPAN_LOSS, LEAST_SPAN)
    return sorted(set(found))


def ascend_adaptively(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    objective: Objective,
    start: Tensor,
    *,
    norm: Norm,
    eps: float,
    steps: int,
) -> Attacked:
    """Climb `objective` from `start`: of the images that fooled the model the one of highest rank, else of all.

    The step begins at 2 * eps. At each checkpoint it is halved, and the climb goes back to the best point, for images that
    rose too seldom, or that found nothing better since the last checkpoint with this same step.
    """
    current = best = found = _look(model, start.detach(), labels, objective, climbs=steps > 0)
    previous = current.images
    survived, rises = torch.zeros_like(labels), torch.zeros_like(labels)
    step = images.new_full((len(images), 1, 1, 1), 2 * eps)
    was_halved, rank_before, last_check = torch.zeros_like(labels, dtype=torch.bool), best.ranks, 0
    looks = checkpoints(steps)
    for done in range(1, steps + 1):
        survived = survived + (current.logits.argmax(dim=1) == labels)
        towards = box(images, current.images + step * norm.direction(current.gradient), norm, eps)
        share = OWN_SHARE if done > 1 else 1.0
        moved = current.images + share * (towards - current.images) + (1 - share) * (current.images - previous)
        previous, rank = current.images, current.ranks
        current = _look(model, box(images, moved, norm, eps), labels, objective, climbs=done < steps)
        rises = rises + (current.ranks > rank)
        best = best.replaced(current.ranks > best.ranks, current)
        found = found.replaced(outranks(current.logits, current.ranks, found.logits, found.ranks, labels), current)
        if done in looks:
            is_stuck = ~was_halved & (best.ranks == rank_before)
            was_halved = (rises < RISING_SHARE * (done - last_check)) | is_stuck
            step = torch.where(was_halved[:, None, None, None], step / 2, step)
            current = current.replaced(was_halved, best)
            rank_before, last_check, rises = best.ranks, done, torch.zeros_like(rises)
    return Attacked(found.images, found.logits, survived)


def _look(model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, climbs: bool) -> Point:
    """A point, with the gradient unless nobody is going to climb from there."""
    images = images.detach()
    if not climbs:
        with torch.no_grad():
            logits = model(images)
        return Point(images, logits, ranks(objective, logits, labels), torch.zeros_like(images))
    images.requires_grad_()
    with torch.enable_grad():
        logits = model(images)
        # the sum, not the mean: each image climbs by itself, whatever the batch
        (gradient,) = torch.autograd.grad(objective(logits, labels).sum(), images)
    logits = logits.detach()
    return Point(images.detach(), logits, ranks(objective, logits, labels), gradient)
