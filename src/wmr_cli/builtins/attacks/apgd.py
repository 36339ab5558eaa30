"""Auto-PGD: no step size to choose."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ...core.adaptive import ascend_adaptively
from ...core.ascent import start
from ...core.contracts import Attacked, Objective
from ...core.norms import NORMS
from ...core.objectives import DLR_CLASSES, at_rows, objective_named
from ...core.turns import restarted
from ...errors import BadInput


@dataclass(frozen=True)
class Apgd:
    """Auto-PGD (Croce and Hein 2020, arXiv:2003.01690). (N, C, H, W) in [0, 1] to the same.

    Climbs the objective it is given; in evaluation that is its `loss`. Each image halves its own step when it no longer
    gets on. Of the images seen in all restarts it gives the highest of those that fooled the model, else the highest.
    With `stops_early` a fooled image is left out of further restarts.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    loss: str = "ce"
    stops_early: bool = False

    def __post_init__(self) -> None:
        if self.eps < 0 or self.steps < 0 or self.restarts < 1:
            raise BadInput(f"{self} cannot be run", hint="eps and steps are not negative; restarts is 1 or more")
        objective_named(self.loss)

    def remarks(self, num_classes: int) -> Iterator[str]:
        """What is different with so few classes."""
        if self.loss == "dlr" and num_classes < DLR_CLASSES:
            yield f"the DLR loss needs {DLR_CLASSES} classes: with {num_classes} the attack climbs the margin loss"

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        norm = NORMS[self.norm]

        def climb(rows: Tensor, restart: int) -> Attacked:
            begin = start("uniform", images[rows], norm, self.eps, index[rows], seed, restart)
            return ascend_adaptively(
                model, images[rows], labels[rows], at_rows(objective, rows), begin,
                norm=norm, eps=self.eps, steps=self.steps,
            )  # fmt: skip

        return restarted(climb, model, images, labels, objective, self.restarts, self.stops_early)
