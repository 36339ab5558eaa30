"""The worst weights in a chi-squared ball."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import kernel_loss
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput, BrokenContract
from ...measures import worst_case


@dataclass(frozen=True)
class ChiSquared:
    """Weighs by the exact solution of distributionally robust optimisation over the batch, or over an evaluation.

    Weight: `N * w`, with w the weights in `(N/2) |w - 1/N|^2 <= rho` that make the loss largest, without gradient
    Good for: training against the attackers of `--metrics dro`
    Reference: Namkoong and Duchi 2017, arXiv:1610.02581
    """

    rho: float = 0.5

    traits = KernelTraits(differentiable=False, compares_images=True)

    def __post_init__(self) -> None:
        if self.rho < 0:
            raise BadInput(
                f"rho is {self.rho:g}", hint="rho is not negative; 0 weighs all images the same"
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        losses = kernel_loss(evidence)
        if not losses.isfinite().all():
            raise BrokenContract(
                "the loss of an image is not finite", hint="try a smaller `lr` or `clip_grad=1`"
            )
        worst = worst_case(losses.cpu().numpy(), self.rho)
        return torch.from_numpy(worst.weights * len(losses)).log().to(losses)
