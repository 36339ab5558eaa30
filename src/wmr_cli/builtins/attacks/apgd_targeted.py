"""Auto-PGD towards one wrong class after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...core.adaptive import ascend_adaptively
from ...core.ascent import start
from ...core.contracts import Attacked, Objective
from ...core.norms import NORMS
from ...core.targets import MOST_TARGETS, RATIO_CLASSES, TargetedRatio, likely_wrong
from ...core.turns import take_turns
from ...errors import BadInput


@dataclass(frozen=True)
class TargetedApgd:
    """Auto-PGD on the targeted DLR loss (Croce and Hein 2020, arXiv:2003.01690). (N, C, H, W) in [0, 1] to the same.

    Climbs towards each of the `targets` most likely wrong classes in turn, whatever objective it is given, and leaves a
    fooled image alone: it gives A_rob. Images that withstand every target come back clean.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    targets: int = MOST_TARGETS
    stops_early: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 0 or self.restarts < 1 or self.targets < 1:
            raise BadInput(f"{self} cannot be run", hint="eps and steps are not negative; restarts and targets are 1 or more")

    def remarks(self, num_classes: int) -> Iterator[str]:
        """What is different with so few classes."""
        if num_classes < RATIO_CLASSES:
            yield f"the targeted DLR loss needs {RATIO_CLASSES} classes: with {num_classes} the attack climbs the targeted margin"

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        with torch.no_grad():
            targets = likely_wrong(model(images), labels, self.targets)
        norm = NORMS[self.norm]

        def climb(rows: Tensor, turn: int) -> Attacked:
            towards = TargetedRatio(targets[rows, turn % targets.shape[1]])
            begin = start("uniform", images[rows], norm, self.eps, index[rows], seed, restart=turn)
            return ascend_adaptively(
                model, images[rows], labels[rows], towards, begin, norm=norm, eps=self.eps, steps=self.steps
            )  # fmt: skip

        turns = range(self.restarts * targets.shape[1])
        return take_turns(model, images, labels, [partial(climb, turn=turn) for turn in turns])
