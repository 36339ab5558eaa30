"""Attempts one after the other: the strongest of all, or in turns, where each sees only the images still standing."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from .ascent import stronger
from .contracts import Attacked, Objective

Attempt = Callable[[Tensor], Attacked]
"""The rows (M,) of the batch that it is to attack, to their result."""


class Restart(Protocol):
    """The rows (M,) of the batch that it is to attack, and which restart this is, to their result."""

    def __call__(self, rows: Tensor, restart: int) -> Attacked: ...


def take_turns(model: nn.Module, images: Tensor, labels: Tensor, attempts: Iterable[Attempt]) -> Attacked:
    """Every image as the first attempt that fooled the model left it; clean where none did, or none had to.

    (N, C, H, W) to the same. For right or wrong, not for margins. `steps_survived` adds up over the attempts that an image
    saw.
    """
    with torch.no_grad():
        logits = model(images)
    moved, survived = images.detach().clone(), torch.zeros_like(labels)
    for attempt in attempts:
        rows = (logits.argmax(dim=1) == labels).nonzero().squeeze(1)
        if not len(rows):
            break
        result = attempt(rows)
        is_fooled = result.logits.argmax(dim=1) != labels[rows]
        fooled = rows[is_fooled]
        moved[fooled] = result.images[is_fooled]
        logits[fooled] = result.logits[is_fooled]
        survived[rows] += result.steps_survived
    return Attacked(moved, logits, survived)


def restarted(
    run: Restart,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    objective: Objective,
    restarts: int,
    stops_early: bool,
) -> Attacked:
    """`run(rows, restart)` as often as asked: for every image the strongest result, or in turns with `stops_early`."""
    if stops_early:
        return take_turns(model, images, labels, [partial(run, restart=restart) for restart in range(restarts)])
    everything, result = torch.arange(len(labels), device=labels.device), None
    for restart in range(restarts):
        result = stronger(result, run(everything, restart), objective, labels)
    assert result is not None  # there is one restart at least
    return result
