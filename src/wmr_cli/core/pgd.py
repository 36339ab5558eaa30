"""Projected gradient descent (PGD): the shared loop and its starting points."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from . import rng
from .contexts import AttackStep, compile_if_enabled
from .eot import AveragedModel, mean_of_draws
from .norms import Norm, Radius
from .protocols import AttackResult, Batch, Objective
from .restarts import pick_lower_margin
from .traits import AttackTraits

StartKind = Literal["uniform", "gauss", "none"]

GAUSS_SCALE = 0.001
"""Standard deviation of the `gauss` start, in pixel values."""


@dataclass(frozen=True, eq=False)
class PgdSettings:
    """The ε-ball and the steps inside it; eps and step may be one per image, (N, 1, 1, 1)."""

    norm: Norm
    eps: Radius
    step: Radius
    steps: int


def project_to_ball(images: Tensor, moved: Tensor, norm: Norm, eps: Radius) -> Tensor:
    """Project `moved` into the ε-ball around `images`, then into [0, 1]."""
    # clean images lie in [0, 1], so the final clamp never leaves the ball
    return (images + norm.project(moved - images, eps)).clamp(0, 1)


def start_images(
    kind: StartKind,
    batch: Batch,
    norm: Norm,
    eps: Radius,
    *,
    seed: int,
    restart: int = 0,
    scale: float = GAUSS_SCALE,
) -> Tensor:
    """Return the starts: `uniform` in the ε-ball, `gauss` noise, or the images (`none`)."""
    moved = batch.images
    if kind == "uniform":
        moved = moved + norm.random(batch.images, eps, batch.index, seed, restart)
    # TRADES starts here: at the clean image itself the KL divergence has no gradient
    elif kind == "gauss":
        moved = moved + scale * rng.normal(batch.images, batch.index, seed, restart)
    elif kind != "none":
        raise ValueError(f"no start is called {kind!r}")
    return project_to_ball(batch.images, moved, norm, eps)


def start_attempts(batch: Batch, norm: Norm, eps: float, attempts: Tensor, *, seed: int) -> Tensor:
    """Return uniform starts in the ε-ball, for each image that of its attempt (N,)."""
    starts = torch.empty_like(batch.images)
    # few: a batch holds several attempts on an image only if few images are left
    for attempt in attempts.unique().tolist():
        rows = (attempts == attempt).nonzero().squeeze(1)
        starts[rows] = start_images(
            "uniform", batch.select(rows), norm, eps, seed=seed, restart=attempt
        )
    return starts


def input_gradient(
    model: nn.Module, images: Tensor, labels: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return the objective's gradient with respect to the images, and the logits, both detached.

    For an `AveragedModel` it is the mean of the draws' gradients, and the logits are its own.
    """
    if isinstance(model, AveragedModel):
        return _mean_gradient(model, images, labels, objective)
    images = images.detach().requires_grad_()
    # callers may be inside `no_grad`
    with torch.enable_grad():
        logits = model(images)
        values = objective(logits, labels)
        # of the sum, not the mean: an image's gradient must not depend on the batch size
        # `grad`, not `backward`: it leaves the gradients of the parameters alone
        (gradient,) = torch.autograd.grad(values, images, torch.ones_like(values))
    return gradient, logits.detach()


def _mean_gradient(
    averaged: AveragedModel, images: Tensor, labels: Tensor, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return the mean gradient of all draws, and the logits of the averaged model."""
    # the mean of the gradients, not the gradient of the averaged logits: the attack maximises the
    # expected objective
    gradient, first_logits = input_gradient(averaged.model, images, labels, objective)
    logits = [first_logits]
    for _ in range(averaged.draws - 1):
        part, part_logits = input_gradient(averaged.model, images, labels, objective)
        gradient = gradient + part
        logits.append(part_logits)
    return gradient / averaged.draws, mean_of_draws(logits)


def pgd_steps(
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    start: Tensor,
    settings: PgdSettings,
    on_iterate: Callable[[AttackResult], None] | None = None,
) -> AttackResult:
    """Maximise `objective` from `start` and return the last iterate, without its logits.

    `on_iterate` receives every iterate before the last one, with its logits.
    """
    take_step: AttackStep = pgd_step
    # a compiler keeps a graph per network, and each attack wraps its network anew
    if not isinstance(model, AveragedModel):
        take_step = compile_if_enabled(pgd_step, like=batch.images)
    images = start.detach()
    steps_survived = torch.zeros_like(batch.labels)
    for _ in range(settings.steps):
        moved, steps_survived, logits = take_step(
            model,
            images,
            steps_survived,
            batch.images,
            batch.labels,
            objective,
            settings.norm,
            settings.eps,
            settings.step,
        )
        if on_iterate is not None:
            on_iterate(AttackResult(images, steps_survived, logits))
        images = moved
    return AttackResult(images, steps_survived)


def pgd_step(  # noqa: PLR0913 - a compiler needs all tensors as arguments
    model: nn.Module,
    images: Tensor,
    steps_survived: Tensor,
    clean_images: Tensor,
    labels: Tensor,
    objective: Objective,
    norm: Norm,
    eps: Radius,
    step: Radius,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next iterate and its count of steps, with the logits of this one."""
    gradient, logits = input_gradient(model, images, labels, objective)
    # count with the logits of the gradient's forward pass: no extra pass is needed
    steps_survived = steps_survived + (logits.argmax(dim=1) == labels)
    moved = images + step * norm.direction(gradient)
    return project_to_ball(clean_images, moved, norm, eps), steps_survived, logits


def run_pgd(
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    start: Tensor,
    settings: PgdSettings,
    *,
    keep_lowest_margin: bool = False,
    need_logits: bool = True,
) -> AttackResult:
    """Run PGD and return the last iterate of each image.

    With `keep_lowest_margin` it is the iterate of lowest logit margin, whatever the objective.
    """
    if not keep_lowest_margin:
        last = pgd_steps(model, batch, objective, start, settings)
        return with_logits(model, last) if need_logits else last

    lowest: AttackResult | None = None

    def keep_lower_margin(iterate: AttackResult) -> None:
        nonlocal lowest
        lowest = pick_lower_margin(lowest, iterate, batch.labels)

    last = pgd_steps(model, batch, objective, start, settings, on_iterate=keep_lower_margin)
    # the last iterate needs a forward pass of its own to be compared
    last = with_logits(model, last)
    lowest = pick_lower_margin(lowest, last, batch.labels)
    return replace(lowest, steps_survived=last.steps_survived)


def with_logits(model: nn.Module, result: AttackResult) -> AttackResult:
    """Add the logits of the adversarial images, by one forward pass."""
    with torch.no_grad():
        return replace(result, logits=model(result.images))


@dataclass(frozen=True, eq=False)
class UniformStartPgd:
    """PGD from a uniform start, for defenses with an attack of their own.

    Radius and step are numbers, or tensors with one value per image (N,).
    """

    norm: Norm
    eps: float | Tensor
    step: float | Tensor
    steps: int

    traits = AttackTraits()

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        eps = _as_radius(self.eps)
        settings = PgdSettings(self.norm, eps, _as_radius(self.step), self.steps)
        start = start_images("uniform", batch, self.norm, eps, seed=seed)
        return run_pgd(model, batch, objective, start, settings, need_logits=need_logits)


def _as_radius(value: float | Tensor) -> Radius:
    """Reshape one value per image (N,) so that it broadcasts over pixels."""
    return value.reshape(-1, 1, 1, 1) if isinstance(value, Tensor) else value
