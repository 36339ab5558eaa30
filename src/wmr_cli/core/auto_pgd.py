"""Auto-PGD: PGD that adapts its step size per image (Croce and Hein 2020, arXiv:2003.01690)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .losses import ranking_scores, select_rows
from .norms import Norm
from .pgd import input_gradient, project_to_ball
from .protocols import AttackResult, Batch, Objective
from .restarts import first_rows, is_stronger, take_rows

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
        return Point(
            take_rows(mask, other.images, self.images),
            take_rows(mask, other.logits, self.logits),
            torch.where(mask, other.ranks, self.ranks),
            take_rows(mask, other.gradient, self.gradient),
        )

    def select(self, rows: Tensor) -> "Point":
        """Return these rows."""
        return Point(self.images[rows], self.logits[rows], self.ranks[rows], self.gradient[rows])


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


def check_intervals(steps: int) -> dict[int, int]:
    """Return the steps after which progress is checked, with the steps since the last check."""
    ends = checkpoints(steps)
    return {end: end - begin for begin, end in zip([0, *ends], ends, strict=False)}


@dataclass
class _Search:
    """State of the searches of a batch, one row each."""

    batch: Batch
    objective: Objective
    current: Point
    best: Point
    """Highest rank so far: the search returns to it."""
    previous_images: Tensor
    rises: Tensor
    step: Tensor
    was_halved: Tensor
    last_best_ranks: Tensor

    @classmethod
    def begin(cls, batch: Batch, objective: Objective, start: Point, eps: float) -> "_Search":
        labels = batch.labels
        return cls(
            batch,
            objective,
            start,
            start,
            start.images,
            rises=torch.zeros_like(labels),
            step=batch.images.new_full((len(labels), 1, 1, 1), 2 * eps),
            # the second condition of a halving holds only if the step was not halved before
            was_halved=torch.zeros_like(labels, dtype=torch.bool),
            last_best_ranks=start.ranks,
        )

    def select(self, rows: Tensor) -> "_Search":
        """Return the searches of these rows."""
        return _Search(
            self.batch.select(rows),
            # an objective such as KL holds values per image and must follow the rows
            select_rows(self.objective, rows),
            self.current.select(rows),
            self.best.select(rows),
            self.previous_images[rows],
            self.rises[rows],
            self.step[rows],
            self.was_halved[rows],
            self.last_best_ranks[rows],
        )

    def advance(
        self, model: nn.Module, norm: Norm, eps: float, *, is_first: bool, is_last: bool
    ) -> None:
        """Move to the next iterate."""
        # the first step has no previous one, and so no momentum
        fraction = 1.0 if is_first else STEP_FRACTION
        images = self.batch.images
        current = self.current
        ascended = (self.step * norm.direction(current.gradient)).add_(current.images)
        moved = project_to_ball(images, ascended, norm, eps)
        # in place: on a CPU an allocation takes longer than the arithmetic
        moved.sub_(current.images).mul_(fraction).add_(current.images)
        moved.add_((current.images - self.previous_images).mul_(1 - fraction))
        moved = project_to_ball(images, moved, norm, eps)
        self.previous_images = current.images
        # no step follows the last point, so it needs no gradient
        self.current = _evaluate(
            model, moved, self.batch.labels, self.objective, with_gradient=not is_last
        )
        self.rises = self.rises + (self.current.ranks > current.ranks)
        self.best = self.best.replace_rows(self.current.ranks > self.best.ranks, self.current)

    def check_progress(self, steps: int) -> None:
        """Halve the step, and return to the best point, where `steps` steps made little progress.

        The objective rose too seldom, or the search found nothing better with the current step.
        """
        rose_seldom = self.rises < MIN_RISING_FRACTION * steps
        is_stuck = ~self.was_halved & (self.best.ranks == self.last_best_ranks)
        self.was_halved = rose_seldom | is_stuck
        self.step = torch.where(self.was_halved[:, None, None, None], self.step / 2, self.step)
        self.current = self.current.replace_rows(self.was_halved, self.best)
        self.last_best_ranks = self.best.ranks
        self.rises = torch.zeros_like(self.rises)


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
    """
    labels = batch.labels
    first = _evaluate(model, start.detach(), labels, objective, with_gradient=steps > 0)
    search = _Search.begin(batch, objective, first, eps)
    strongest = first  # misclassified iterates first: the attack returns it
    steps_survived = torch.zeros_like(labels)
    intervals = check_intervals(steps)
    for done in range(1, steps + 1):
        steps_survived = steps_survived + (search.current.logits.argmax(dim=1) == labels)
        search.advance(model, norm, eps, is_first=done == 1, is_last=done == steps)
        current = search.current
        improves = is_stronger(
            current.logits, current.ranks, strongest.logits, strongest.ranks, labels
        )
        strongest = strongest.replace_rows(improves, current)
        if done in intervals:
            search.check_progress(intervals[done])
    return AttackResult(strongest.images, steps_survived, strongest.logits)


def run_auto_pgd_until_misclassified(  # noqa: PLR0913 - `run_auto_pgd` and the owners
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    start: Tensor,
    owners: Tensor,
    *,
    norm: Norm,
    eps: float,
    steps: int,
) -> AttackResult:
    """Like `run_auto_pgd`, but return the first misclassified iterate of each row.

    A row is left out of further steps once it is misclassified, and also once an earlier row with
    the same owner (N,) is. The logits of other rows are those of the start.
    """
    first = _evaluate(model, start.detach(), batch.labels, objective, with_gradient=steps > 0)
    search = _Search.begin(batch, objective, first, eps)
    found = AttackResult(first.images.clone(), torch.zeros_like(batch.labels), first.logits.clone())
    rows = torch.arange(len(owners), device=owners.device)
    intervals = check_intervals(steps)
    for done in range(steps + 1):
        if done > 0:
            search.advance(model, norm, eps, is_first=done == 1, is_last=done == steps)
        current = search.current
        is_wrong = current.logits.argmax(dim=1) != search.batch.labels
        succeeded = rows[is_wrong]
        found.images[succeeded] = current.images[is_wrong]
        found.require_logits()[succeeded] = current.logits[is_wrong]
        if len(succeeded):
            kept = (rows < first_rows(succeeded, owners)[owners[rows]]).nonzero().squeeze(1)
            rows = rows[kept]
            # some models fail on empty batches
            if not len(rows):
                break
            search = search.select(kept)
        found.steps_survived[rows] += int(done < steps)
        if done in intervals:
            search.check_progress(intervals[done])
    return found


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
