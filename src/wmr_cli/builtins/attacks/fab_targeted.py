"""The fast adaptive boundary attack towards one wrong class after the other."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...core.contracts import Attacked, Objective
from ...core.hyperplane import step_onto
from ...core.norms import NORMS
from ...core.targets import MOST_TARGETS, likely_wrong, targeted_overtake
from ...core.turns import take_turns
from ...errors import BadInput


@dataclass(frozen=True)
class TargetedFab:
    """Targeted FAB (Croce and Hein 2020, arXiv:1907.02044). (N, C, H, W) in [0, 1] to the same.

    Looks for the nearest image that fools the model, whatever objective it is given: it steps onto the linearised
    boundary to each of the `targets` most likely wrong classes, held back towards the original by at most `alpha_max`,
    overshooting by `eta`, and once across goes back by `beta`. It leaves a fooled image alone and so gives A_rob; an image whose
    nearest example lies outside the ball comes back clean.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    targets: int = MOST_TARGETS
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    stops_early: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 0 or self.restarts < 1 or self.targets < 1:
            raise BadInput(f"{self} cannot be run", hint="eps and steps are not negative; restarts and targets are 1 or more")
        if not (0 <= self.alpha_max <= 1 <= self.eta and 0 < self.beta <= 1):
            raise BadInput(f"{self} cannot be run", hint="alpha_max and beta lie between 0 and 1; eta is 1 or more")

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        with torch.no_grad():
            targets = likely_wrong(model(images), labels, self.targets)

        def search(rows: Tensor, turn: int) -> Attacked:
            begin, towards = images[rows], targets[rows, turn % targets.shape[1]]
            if turn >= targets.shape[1]:  # a second round begins somewhere else
                begin = begin + NORMS[self.norm].random(begin, self.eps / 2, index[rows], seed, restart=turn)
            return self._search(model, images[rows], labels[rows], towards, begin.clamp(0, 1))

        turns = range(self.restarts * targets.shape[1])
        return take_turns(model, images, labels, [partial(search, turn=turn) for turn in turns])

    def _search(self, model: nn.Module, images: Tensor, labels: Tensor, targets: Tensor, begin: Tensor) -> Attacked:
        """Walk along the boundary to one target (N,) each; the nearest image that fools the model, if it is in the ball."""
        norm, current = NORMS[self.norm], begin
        with torch.no_grad():
            found, logits = images, model(images)
        nearest, survived = images.new_full((len(images),), self.eps), torch.zeros_like(labels)
        for _ in range(self.steps):
            value, gradient = _linearised(model, current, labels, targets)
            current = self._stepped(images, current, value, gradient)
            with torch.no_grad():
                moved = model(current)
            is_fooled = moved.argmax(dim=1) != labels
            survived = survived + ~is_fooled
            size = norm.size(current - images)
            is_nearer = is_fooled & (size <= nearest)
            wide = is_nearer[:, None, None, None]
            found = torch.where(wide, current, found)
            logits = torch.where(is_nearer[:, None], moved, logits)
            nearest = torch.where(is_nearer, size, nearest)
            current = torch.where(is_fooled[:, None, None, None], images + self.beta * (current - images), current)
        return Attacked(found, logits, survived)

    def _stepped(self, images: Tensor, current: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """One step onto the boundary, between the nearest points to where it stands and to the original."""
        norm, shape = NORMS[self.norm], images.shape
        original, here, normal = images.flatten(1), current.flatten(1), gradient.flatten(1)
        # at `here` the linearisation is `value`; at the original it is that much less
        value_there = value + ((original - here) * normal).sum(dim=1)
        from_here = step_onto(here, normal, -value, self.norm)
        from_there = step_onto(original, normal, -value_there, self.norm)
        length, length_there = (norm.size(step.reshape(shape)) for step in (from_here, from_there))
        total = length + length_there
        alpha = (length / torch.where(total > 0, total, 1)).clamp(max=self.alpha_max)[:, None]
        moved = (1 - alpha) * (here + self.eta * from_here) + alpha * (original + self.eta * from_there)
        return moved.clamp(0, 1).reshape(shape)


def _linearised(model: nn.Module, images: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """How far the target class is ahead, (N,), and its gradient (N, C, H, W)."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        value = targeted_overtake(model(images), labels, targets)
        (gradient,) = torch.autograd.grad(value.sum(), images)
    return value.detach(), gradient
