"""The targeted fast adaptive boundary (FAB) attack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from ...core.losses import MAX_TARGETS, most_likely_targets, targeted_margin_loss
from ...core.norms import NORMS
from ...core.pgd import input_gradient
from ...core.protocols import AttackResult, Batch, Objective
from ...core.restarts import attack_until_misclassified
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

    traits = AttackTraits(stops_early=True)

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 0 or self.restarts < 1 or self.targets < 1:
            raise BadInput(
                f"{self} cannot be run",
                hint="`eps` and `steps` are at least 0, `restarts` and `targets` at least 1",
            )
        if not (0 <= self.alpha_max <= 1 <= self.eta and 0 < self.beta <= 1):
            raise BadInput(
                f"{self} cannot be run",
                hint="`alpha_max` and `beta` are between 0 and 1, `eta` is at least 1",
            )

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        objective: Objective,
        *,
        seed: int,
        need_logits: bool = True,
    ) -> AttackResult:
        with torch.no_grad():
            targets = most_likely_targets(model(batch.images), batch.labels, self.targets)
        num_targets = targets.shape[1]

        def search(rows: Tensor, attempt: int) -> AttackResult:
            part = batch.select(rows)
            start = part.images
            if attempt >= num_targets:  # only the first round starts at the images
                start = start + NORMS[self.norm].random(
                    start, self.eps / 2, part.index, seed, restart=attempt
                )
            part_targets = targets[rows, attempt % num_targets]
            return self._search(model, part, part_targets, start.clamp(0, 1))

        attempts = [
            partial(search, attempt=number) for number in range(self.restarts * num_targets)
        ]
        return attack_until_misclassified(model, batch, attempts)

    def _search(
        self, model: nn.Module, batch: Batch, targets: Tensor, start: Tensor
    ) -> AttackResult:
        """Follow the boundary to one target (N,) per image.

        Return the nearest misclassified image in the ε-ball, or the clean one.
        """
        norm = NORMS[self.norm]
        images = batch.images
        current = start
        nearest_images = images
        with torch.no_grad():
            nearest_logits = model(images)
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
            nearest_images = torch.where(is_nearer[:, None, None, None], current, nearest_images)
            nearest_logits = torch.where(is_nearer[:, None], logits, nearest_logits)
            nearest_size = torch.where(is_nearer, size, nearest_size)
            towards_original = images + self.beta * (current - images)
            current = torch.where(is_wrong[:, None, None, None], towards_original, current)
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
        from_here = step_to_hyperplane(here, normal, -value, self.norm)
        from_original = step_to_hyperplane(original, normal, -value_at_original, self.norm)
        length_here = norm.size(from_here.reshape(images.shape))
        length_original = norm.size(from_original.reshape(images.shape))
        total = length_here + length_original
        alpha = (length_here / torch.where(total > 0, total, 1)).clamp(max=self.alpha_max)[:, None]
        point_from_here = here + self.eta * from_here
        point_from_original = original + self.eta * from_original
        moved = (1 - alpha) * point_from_here + alpha * point_from_original
        return moved.clamp(0, 1).reshape(images.shape)


_SPEEDS: Mapping[str, Callable[[Tensor], Tensor]] = {"linf": torch.ones_like, "l2": torch.abs}
"""How fast pixels move as the distance grows: equally in Linf, proportional to the normal in L2."""


def step_to_hyperplane(points: Tensor, normal: Tensor, change: Tensor, norm: str) -> Tensor:
    """Return the smallest step that changes <normal, point> by `change` (N,) inside [0, 1].

    Points and normal (N, d) to (N, d). If the cube does not reach the hyperplane, the step goes to
    the nearest corner.
    """
    # Each pixel moves in its useful direction, at its speed, until it reaches 0 or 1: at time t by
    # min(t * speed, room). The change grows piecewise linearly with t, with a kink where a pixel
    # stops. Sorting the stopping times finds the piece that contains the wanted change.
    gradient = normal * torch.where(change < 0, -1, 1)[:, None]
    room = torch.where(gradient > 0, 1 - points, points).clamp(min=0)
    speed = _SPEEDS[norm](gradient)
    # a pixel with gradient 0 contributes nothing: it stops at once
    stop_times = torch.where(gradient == 0, 0, room / torch.where(speed == 0, 1, speed))
    time = _time_of_gain(change.abs(), stop_times, gradient.abs() * speed)
    return gradient.sign() * torch.minimum(time[:, None] * speed, room)


def _time_of_gain(gain: Tensor, stop_times: Tensor, rates: Tensor) -> Tensor:
    """Return the time (N,) when Σ rate * min(t, stop time) reaches the gain.

    If the sum never does, it is the last stopping time. Stop times and rates are (N, d).
    """
    stop_times, order = stop_times.sort(dim=1)
    rates = rates.gather(1, order)
    # before the k-th stop, the pixels from k on still move
    total_rates = rates.flip(1).cumsum(dim=1).flip(1)
    durations = torch.diff(stop_times, dim=1, prepend=torch.zeros_like(stop_times[:, :1]))
    gained = (total_rates * durations).cumsum(dim=1)
    last = stop_times.shape[1] - 1
    piece = torch.searchsorted(gained, gain[:, None].contiguous()).clamp(max=last)
    missing = gain - (gained - total_rates * durations).gather(1, piece).squeeze(1)
    rate = total_rates.gather(1, piece).squeeze(1)
    begin = (stop_times - durations).gather(1, piece).squeeze(1)
    time = begin + missing / torch.where(rate > 0, rate, 1)
    return torch.minimum(time, stop_times[:, -1])
