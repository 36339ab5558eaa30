"""Tilted losses."""

from dataclasses import dataclass

from torch import Tensor

from ...core.losses import kernel_loss
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Tilt:
    """Weighs by the loss itself. The gradient is that of `log(mean(exp(t * loss))) / t`, the worst case in a KL ball.

    Weight: `exp(t * loss)`, divided by the batch's mean, without gradient
    Good for: few images of large loss; t = 0 is the mean, a large t the maximum
    Reference: Li et al. 2021, arXiv:2007.01162
    """

    t: float = 1.0

    traits = KernelTraits(differentiable=False, normalized=True)

    def __post_init__(self) -> None:
        if self.t < 0:
            raise BadInput(
                f"t is {self.t:g}", hint="t is not negative; 0 weighs all images the same"
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        return self.t * kernel_loss(evidence)
