"""The one projected-ascent loop, and where it starts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from . import noise
from .contracts import Attacked, Crafted, Objective
from .margins import logit_margin
from .norms import Norm, Radius
from .objectives import ranks


def box(images: Tensor, moved: Tensor, norm: Norm, eps: Radius) -> Tensor:
    """Back into the ball, then into [0, 1]. Images lie in [0, 1], so the second clamp never leaves the ball."""
    return (images + norm.project(moved - images, eps)).clamp(0, 1)


def start(
    kind: str, images: Tensor, norm: Norm, eps: Radius, index: Tensor, seed: int, restart: int = 0, scale: float = 0.001
) -> Tensor:
    """Where an attack begins: `uniform` in the ball, `gauss` noise of a small scale, or at the image (`none`)."""
    if kind == "uniform":
        moved = images + norm.random(images, eps, index, seed, restart)
    elif kind == "gauss":
        moved = images + scale * noise.normal(images, index, seed, restart)
    else:
        moved = images
    return box(images, moved, norm, eps)


class Route(TypedDict):
    """A ball, and the steps inside it."""

    norm: Norm
    eps: Radius
    step: Radius
    steps: int


def climb(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    objective: Objective,
    start: Tensor,
    watch: Callable[[Attacked], None] | None = None,
    *,
    norm: Norm,
    eps: Radius,
    step: Radius,
    steps: int,
) -> Crafted:
    """Climb `objective` from `start` in `steps` steps to the last iterate; those before it may be watched.

    Only the input gets a gradient. Images, labels (N, ...) to the same.
    """
    current, survived = start.detach(), torch.zeros_like(labels)
    for _ in range(steps):
        current.requires_grad_()
        with torch.enable_grad():
            logits = model(current)
            values = objective(logits, labels)
            # the sum, not the mean: each image climbs by itself, whatever the batch
            (gradient,) = torch.autograd.grad(values.sum(), current)
        current = current.detach()
        survived = survived + (logits.argmax(dim=1) == labels)
        if watch is not None:
            watch(Attacked(current, logits.detach(), survived))
        current = box(images, current + step * norm.direction(gradient), norm, eps)
    return Crafted(current, survived)


def ascend(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    objective: Objective,
    start: Tensor,
    keep_best: bool = False,
    **route: Unpack[Route],
) -> Attacked:
    """The same with the logits of what it made; with `keep_best` the iterate of lowest margin."""
    best: Attacked | None = None

    def watch(iterate: Attacked) -> None:
        nonlocal best
        best = worse(best, iterate, labels)

    last = judged(model, climb(model, images, labels, objective, start, watch if keep_best else None, **route))
    return replace(worse(best, last, labels), steps_survived=last.steps_survived)


def judged(model: nn.Module, made: Crafted) -> Attacked:
    """The same images with their logits, by one more pass."""
    with torch.no_grad():
        return Attacked(made.images, model(made.images), made.steps_survived)


@dataclass(frozen=True, eq=False)
class Ascent:
    """The attack of a defense that brings its own, from a uniform start. Radius and step are numbers, or one per image (N,)."""

    norm: Norm
    eps: float | Tensor
    step: float | Tensor
    steps: int

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        return judged(model, self.craft(model, images, labels, objective, index, seed))

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int) -> Crafted:
        """The same without logits."""
        eps, step = (value.reshape(-1, 1, 1, 1) if isinstance(value, Tensor) else value for value in (self.eps, self.step))
        begin = start("uniform", images, self.norm, eps, index, seed)
        return climb(model, images, labels, objective, begin, norm=self.norm, eps=eps, step=step, steps=self.steps)


def worse(first: Attacked | None, second: Attacked, labels: Tensor) -> Attacked:
    """Image by image the result with the lower logit margin: the worst case for the model.

    On a tie one that is wrong wins, and the later of two alike: an image that any of the two fooled stays fooled.
    """
    if first is None:
        return second
    before, after = logit_margin(first.logits, labels), logit_margin(second.logits, labels)
    was_right, is_wrong = first.logits.argmax(dim=1) == labels, second.logits.argmax(dim=1) != labels
    takes = (after < before) | ((after == before) & (was_right | is_wrong))
    return Attacked(
        torch.where(takes[:, None, None, None], second.images, first.images),
        torch.where(takes[:, None], second.logits, first.logits),
        torch.minimum(first.steps_survived, second.steps_survived),
    )


def outranks(logits: Tensor, rank: Tensor, old_logits: Tensor, old_rank: Tensor, labels: Tensor) -> Tensor:
    """Where a result is better for the attack than an older one, (N,): fooled before not fooled, then the higher rank."""
    is_fooled, was_fooled = logits.argmax(dim=1) != labels, old_logits.argmax(dim=1) != labels
    return (is_fooled & ~was_fooled) | ((is_fooled == was_fooled) & (rank > old_rank))


def stronger(first: Attacked | None, second: Attacked, objective: Objective, labels: Tensor) -> Attacked:
    """Image by image the result that outranks the other, by what the attack climbs; the earlier of two alike."""
    if first is None:
        return second
    of_first, of_second = (ranks(objective, result.logits, labels) for result in (first, second))
    takes = outranks(second.logits, of_second, first.logits, of_first, labels)
    return Attacked(
        torch.where(takes[:, None, None, None], second.images, first.images),
        torch.where(takes[:, None], second.logits, first.logits),
        torch.minimum(first.steps_survived, second.steps_survived),
    )
