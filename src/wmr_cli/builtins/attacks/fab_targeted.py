"""The targeted fast adaptive boundary (FAB) attack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.contexts import compute_logits
from ...core.eot import average_draws
from ...core.losses import MAX_TARGETS, most_likely_targets, targeted_margin_loss
from ...core.norms import NORMS
from ...core.pgd import input_gradient, start_attempts
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import attack_in_full_batches, take_rows
from ...core.traits import AttackTraits
from ...errors import BadInput


@dataclass(frozen=True)
class TargetedFab:
    """Targeted FAB (Croce and Hein 2020, arXiv:1907.02044). (N, C, H, W) in [0, 1].

    Searches for the nearest misclassified image, whatever the given objective. Each step goes onto
    the linearised decision boundary to one of the `targets` most likely other classes, biased
    towards the original by at most `alpha_max` and extrapolated by `eta`; once across, it returns
    by `beta`. It stops at the first target that succeeds and so gives A_rob. An image whose nearest
    example is outside the ε-ball is returned clean.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    targets: int = MAX_TARGETS
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    eot: int = 1

    def __post_init__(self) -> None:
        is_negative = self.eps < 0 or self.steps < 0
        if is_negative or self.restarts < 1 or self.targets < 1 or self.eot < 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps` and `steps` are at least 0, `restarts`, `targets` and `eot` at least 1",
            )
        if not (0 <= self.alpha_max <= 1 <= self.eta and 0 < self.beta <= 1):
            raise BadInput(
                f"{self} cannot be run",
                hint="`alpha_max` and `beta` are between 0 and 1, `eta` is at least 1",
            )

    @property
    def traits(self) -> AttackTraits:
        return AttackTraits(stops_early=True, gathers_images=True, eot=self.eot)

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        model = average_draws(model, self.eot)
        clean_logits = compute_logits(model, batch.images)
        targets = most_likely_targets(clean_logits, batch.labels, self.targets)
        num_targets = targets.shape[1]

        def search(rows: Tensor, attempts: Tensor) -> AttackResult:
            part = batch.select(rows)
            noisy = start_attempts(part, NORMS[self.norm], self.eps / 2, attempts, seed=seed)
            # only the first round starts at the images
            is_noisy = (attempts >= num_targets)[:, None, None, None]
            start = torch.where(is_noisy, noisy, part.images)
            return self._search(
                model, part, targets[rows, attempts % num_targets], start, clean_logits[rows]
            )

        return attack_in_full_batches(model, batch, search, self.restarts * num_targets)

    def _search(
        self,
        model: nn.Module,
        batch: Batch,
        targets: Tensor,
        start: Tensor,
        clean_logits: Tensor,
    ) -> AttackResult:
        """Follow the boundary to one target (N,) per image.

        Return the nearest misclassified image in the ε-ball, or the clean one.
        """
        norm = NORMS[self.norm]
        images = batch.images
        current = start
        nearest_images = images
        nearest_logits = clean_logits
        nearest_size = images.new_full((len(images),), self.eps)
        steps_survived = torch.zeros_like(batch.labels)

        def lead(logits: Tensor, labels: Tensor) -> Tensor:
            return targeted_margin_loss(logits, labels, targets)

        for _ in range(self.steps):
            gradient, logits = input_gradient(model, current, batch.labels, lead)
            value = lead(logits, batch.labels)
            current = self._step(images, current, value, gradient)
            with torch.no_grad():
                logits = model(current)
            is_wrong = logits.argmax(dim=1) != batch.labels
            steps_survived = steps_survived + ~is_wrong
            size = norm.size(current - images)
            is_nearer = is_wrong & (size <= nearest_size)
            nearest_images = take_rows(is_nearer, current, nearest_images)
            nearest_logits = take_rows(is_nearer, logits, nearest_logits)
            nearest_size = torch.where(is_nearer, size, nearest_size)
            towards_original = images + self.beta * (current - images)
            current = take_rows(is_wrong, towards_original, current)
        return AttackResult(nearest_images, steps_survived, nearest_logits)

    def _step(self, images: Tensor, current: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Step onto the linearised boundary.

        The target lies between the points nearest to the iterate and to the original.
        """
        norm = NORMS[self.norm]
        original = images.flatten(1)
        here = current.flatten(1)
        normal = gradient.flatten(1)
        # the linearisation has this value at the original
        value_at_original = value + ((original - here) * normal).sum(dim=1)
        from_both = step_to_hyperplane(
            torch.stack([here, original]),
            normal,
            -torch.stack([value, value_at_original]),
            self.norm,
        )
        lengths = norm.size(from_both.flatten(0, 1)[:, :, None, None]).reshape(2, -1)
        total = lengths.sum(dim=0)
        alpha = (lengths[0] / torch.where(total > 0, total, 1)).clamp(max=self.alpha_max)[:, None]
        point_from_here = here + self.eta * from_both[0]
        point_from_original = original + self.eta * from_both[1]
        moved = (1 - alpha) * point_from_here + alpha * point_from_original
        return moved.clamp(0, 1).reshape(images.shape)


MAX_PIECES = 100
"""Steps of Newton's method at most; a few are usual."""
_SPEEDS: Mapping[str, Callable[[Tensor], Tensor]] = {"linf": torch.ones_like, "l2": torch.abs}
"""How fast pixels move as the distance grows: equally in Linf, proportional to the normal in L2."""


def step_to_hyperplane(points: Tensor, normal: Tensor, change: Tensor, norm: str) -> Tensor:
    """Return the smallest step that changes <normal, point> by `change` (..., N) inside [0, 1].

    Points (..., N, d) and normal (N, d) to (..., N, d). If the cube does not reach the hyperplane,
    the step goes to the nearest corner.
    """
    # Each pixel moves in its useful direction, at its speed, until it reaches 0 or 1: at time t by
    # min(t * speed, room). Masks are floats, because CPUs select by Booleans ten times as slowly.
    direction = normal.sign() * torch.where(change < 0, -1.0, 1.0).to(normal)[..., None]
    # the distance from 1 or 0; a pixel with gradient 0 has no useful direction
    room = (direction.clamp(min=0) - points).abs_().mul_(direction.abs())
    rates = normal.abs()
    speed = _SPEEDS[norm](rates)
    stop_times = room / speed.clamp(min=torch.finfo(speed.dtype).tiny)
    time = _time_of_gain(change.abs(), stop_times, rates * speed)
    return torch.minimum(time[..., None] * speed, room).mul_(direction)


def _time_of_gain(gain: Tensor, stop_times: Tensor, rates: Tensor) -> Tensor:
    """Return the time (..., N) when Σ rate * min(t, stop time) reaches the gain.

    If the sum never does, it is the last stopping time. Stop times are (..., N, d).
    """
    # The sum is concave and piecewise linear: Newton's method from the left never goes beyond the
    # solution, and ends after a few pieces. It needs no sorting.
    last = stop_times.amax(dim=-1)
    precision = 4 * torch.finfo(gain.dtype).eps
    is_moving = torch.empty_like(stop_times)
    time = torch.zeros_like(gain)
    for _ in range(MAX_PIECES):
        gained = (torch.minimum(stop_times, time[..., None]) * rates).sum(dim=-1)
        torch.gt(stop_times, time[..., None], out=is_moving)
        rate = is_moving.mul_(rates).sum(dim=-1)
        later = time + (gain - gained) / torch.where(rate > 0, rate, 1)
        # where nothing moves any more, the gain cannot be reached
        later = torch.where(rate > 0, later, last).clamp(max=last)
        is_done = not bool((later > time * (1 + precision)).any())
        # rounding may move the time back by its last digits
        time = torch.maximum(time, later)
        if is_done:
            break
    return time
