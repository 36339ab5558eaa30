"""The fast gradient sign method."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ...core.ascent import climb, judged
from ...core.contracts import Attacked, Crafted, Objective
from ...core.norms import NORMS
from ...errors import BadInput


@dataclass(frozen=True)
class Fgsm:
    """One step of length eps from the image (Goodfellow et al. 2015, arXiv:1412.6572). (N, C, H, W) in [0, 1] to the same.

    Climbs the objective it is given; in evaluation that is the cross-entropy.
    """

    norm: Literal["linf", "l2"] = "linf"
    eps: float = 8 / 255

    def __post_init__(self) -> None:
        if self.eps < 0:
            raise BadInput(f"{self} cannot be run", hint="eps is not negative")

    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int
    ) -> Attacked:
        return judged(model, self.craft(model, images, labels, objective, index, seed))

    def craft(self, model: nn.Module, images: Tensor, labels: Tensor, objective: Objective, index: Tensor, seed: int) -> Crafted:
        """The same without logits."""
        norm = NORMS[self.norm]
        return climb(model, images, labels, objective, images, norm=norm, eps=self.eps, step=self.eps, steps=1)
