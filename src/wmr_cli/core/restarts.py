"""Combine several attempts on a batch: the worst case per image, or until misclassified."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from .contexts import batch_limit, compute_logits, is_accelerator
from .losses import logit_margin, ranking_scores
from .protocols import AttackResult, Batch, Objective

Attempt = Callable[[Tensor], AttackResult]
"""Attacks these rows (M,) of the batch and returns their result."""


class PackedAttempts(Protocol):
    """Runs attempts of these numbers (M,) on these rows (M,) of the batch, as one batch."""

    def __call__(self, rows: Tensor, attempts: Tensor) -> AttackResult: ...


class Restart(Protocol):
    """Attacks these rows (M,) of the batch in one restart and returns their result."""

    def __call__(self, rows: Tensor, restart: int) -> AttackResult: ...


def run_restarts(
    run: Restart,
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    *,
    restarts: int,
    stops_early: bool,
) -> AttackResult:
    """Run all restarts and keep the strongest result per image.

    With `stops_early` an image that was misclassified is left out of later restarts.
    """
    if stops_early:
        attempts = [partial(run, restart=restart) for restart in range(restarts)]
        return attack_until_misclassified(model, batch, attempts)
    # all rows every time: a margin is the worst case over restarts only if all of them ran
    all_rows = torch.arange(len(batch.labels), device=batch.labels.device)
    result = run(all_rows, 0)
    for restart in range(1, restarts):
        result = pick_stronger(result, run(all_rows, restart), objective, batch.labels)
    return result


def attack_until_misclassified(
    model: nn.Module, batch: Batch, attempts: Iterable[Attempt]
) -> AttackResult:
    """Run attempts in order, each on the images that are still classified correctly.

    The result has the images of the first attempt that succeeded, or clean images. It shows which
    images are misclassified, but its margins are meaningless. `steps_survived` is the sum over an
    image's attempts.
    """
    logits = compute_logits(model, batch.images)
    # clones: rows are overwritten below, and the caller's batch must not change
    images = batch.images.detach().clone()
    steps_survived = torch.zeros_like(batch.labels)
    for attempt in attempts:
        rows = (logits.argmax(dim=1) == batch.labels).nonzero().squeeze(1)
        # some models fail on empty batches
        if not len(rows):
            break
        result = attempt(rows)
        result_logits = result.require_logits()
        is_misclassified = result_logits.argmax(dim=1) != batch.labels[rows]
        succeeded = rows[is_misclassified]
        images[succeeded] = result.images[is_misclassified]
        logits[succeeded] = result_logits[is_misclassified]
        steps_survived[rows] += result.steps_survived
    return AttackResult(images, steps_survived, logits)


def attack_in_full_batches(
    model: nn.Module, batch: Batch, run: PackedAttempts, attempts: int
) -> AttackResult:
    """Run attempts 0, 1, … of a number on each image until one of them succeeds.

    The result is that of `attack_until_misclassified`, but a batch holds several attempts on an
    image if few images are left. Small batches take longer per image.
    """
    labels = batch.labels
    count = len(labels)
    logits = compute_logits(model, batch.images)
    # a clone: rows are overwritten below, and the caller's batch must not change
    images = batch.images.detach().clone()
    steps_survived = torch.zeros_like(labels)
    limit = batch_limit(count)
    # all images with attempt 0, then all with attempt 1, …
    queue = torch.arange(attempts * count, device=labels.device)
    while True:
        queue = queue[(logits.argmax(dim=1) == labels)[queue % count]]
        # some models fail on empty batches
        if not len(queue):
            break
        rows = queue[:limit] % count
        result = run(rows, queue[:limit] // count)
        queue = queue[limit:]
        result_logits = result.require_logits()
        succeeded = (result_logits.argmax(dim=1) != labels[rows]).nonzero().squeeze(1)
        # an image's result is that of its first success, as if one attempt followed the other
        first = first_rows(succeeded, rows)[rows]
        order = torch.arange(len(rows), device=rows.device)
        taken = (first == order).nonzero().squeeze(1)
        images[rows[taken]] = result.images[taken]
        logits[rows[taken]] = result_logits[taken]
        steps_survived.index_add_(0, rows, result.steps_survived * (order <= first))
    return AttackResult(images, steps_survived, logits)


def first_rows(chosen: Tensor, owners: Tensor) -> Tensor:
    """Return the first of the chosen rows (M,) of each owner, or a larger number than any row.

    Owners are numbers (N,), one per row. The result is indexed by owner.
    """
    rows = owners.new_full((int(owners.max()) + 1,), len(owners))
    return rows.scatter_reduce(0, owners[chosen], chosen, "amin")


def take_rows(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Take the rows of the mask (N,) from `new`, the others from `old`."""
    if is_accelerator(mask.device):
        return torch.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)
    # CPUs copy rows several times as fast as they select pixels; an accelerator would have to wait
    rows = mask.nonzero().squeeze(1)
    if not len(rows):
        return old
    return old.index_copy(0, rows, new.index_select(0, rows))


def pick_lower_margin(
    first: AttackResult | None, second: AttackResult, labels: Tensor
) -> AttackResult:
    """Pick the result with the lower logit margin per image, whatever the objective.

    At equal margins a misclassified image is preferred, then the second result.
    """
    if first is None:
        return second
    first_logits = first.require_logits()
    second_logits = second.require_logits()
    first_margin = logit_margin(first_logits, labels)
    second_margin = logit_margin(second_logits, labels)
    first_is_correct = first_logits.argmax(dim=1) == labels
    second_is_wrong = second_logits.argmax(dim=1) != labels
    # a margin of exactly 0 is a tie of logits, where argmax decides about success
    is_tie = second_margin == first_margin
    takes_second = (second_margin < first_margin) | (is_tie & (first_is_correct | second_is_wrong))
    return _merge(first, second, takes_second)


def pick_stronger(
    first: AttackResult, second: AttackResult, objective: Objective, labels: Tensor
) -> AttackResult:
    """Pick the stronger result per image by the attack's own objective; the first one at a tie."""
    first_logits = first.require_logits()
    second_logits = second.require_logits()
    takes_second = is_stronger(
        second_logits,
        ranking_scores(objective, second_logits, labels),
        first_logits,
        ranking_scores(objective, first_logits, labels),
        labels,
    )
    return _merge(first, second, takes_second)


def is_stronger(
    logits: Tensor, rank: Tensor, old_logits: Tensor, old_rank: Tensor, labels: Tensor
) -> Tensor:
    """Return where a result is stronger (N,): misclassified first, then the higher rank."""
    is_wrong = logits.argmax(dim=1) != labels
    was_wrong = old_logits.argmax(dim=1) != labels
    return (is_wrong & ~was_wrong) | ((is_wrong == was_wrong) & (rank > old_rank))


def _merge(first: AttackResult, second: AttackResult, takes_second: Tensor) -> AttackResult:
    """Take the rows of the mask (N,) from the second result, with the fewer survived steps."""
    return AttackResult(
        torch.where(takes_second[:, None, None, None], second.images, first.images),
        torch.minimum(first.steps_survived, second.steps_survived),
        torch.where(takes_second[:, None], second.require_logits(), first.require_logits()),
    )
