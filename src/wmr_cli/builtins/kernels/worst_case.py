"""`tilt`, `chi2` and `cvar`: weights of the worst case over distributions near the uniform one.

Each is the solution of a distributionally robust problem over the images that it gets: in a KL
ball, in a chi-squared ball, and among all distributions with bounded weights.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import kernel_loss
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput, BrokenContract
from ...measures import worst_case


@dataclass(frozen=True)
class Tilt:
    """Weights by the loss. The gradient is that of `log(mean(exp(t * loss))) / t`.

    This is the worst case in a KL ball around the uniform distribution.

    Weight: `exp(t * loss)`, divided by the batch's mean, without gradient
    Good for: a few images of large loss; t = 0 is the mean, a large t the maximum
    Reference: Li et al. 2021, arXiv:2007.01162
    """

    t: float = 1.0

    traits = KernelTraits(differentiable=False, normalized=True)

    def __post_init__(self) -> None:
        if self.t < 0:
            raise BadInput(f"`t` is {self.t:g}", hint="`t` is at least 0; 0 gives equal weights")

    def __call__(self, evidence: Evidence) -> Tensor:
        return self.t * kernel_loss(evidence)


@dataclass(frozen=True)
class ChiSquared:
    """Weights by the exact worst case over the batch, or over all images of an evaluation.

    Weight: `N * w`, with w the weights in `(N/2) |w - 1/N|^2 <= rho` of largest loss, without
        gradient
    Good for: training against the attackers of `--metrics dro`
    Reference: Namkoong and Duchi 2017, arXiv:1610.02581
    """

    rho: float = 0.5

    traits = KernelTraits(differentiable=False, compares_images=True)

    def __post_init__(self) -> None:
        if self.rho < 0:
            raise BadInput(
                f"`rho` is {self.rho:g}", hint="`rho` is at least 0; 0 gives equal weights"
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        losses = kernel_loss(evidence)
        if not losses.isfinite().all():
            raise BrokenContract(
                "the loss of an image is not finite", hint="try a smaller `lr` or `clip_grad=1`"
            )
        # the exact solver is numpy in float64; its weights sum to 1, those of a kernel to N
        worst = worst_case(losses.cpu().numpy(), self.rho)
        return torch.from_numpy(worst.weights * len(losses)).log().to(losses)


@dataclass(frozen=True)
class Cvar:
    """Equal weights for the images of largest loss, and none for the others.

    Images whose loss is equal to that of the last selected image share the remaining weight.

    Weight: `1 / share` for the `share` of the batch with the largest loss, else 0, without gradient
    Good for: the conditional value at risk: only images of large loss count
    Reference: Rockafellar and Uryasev 2000
    """

    share: float = 0.5

    traits = KernelTraits(differentiable=False, compares_images=True)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BadInput(f"`share` is {self.share:g}", hint="`share` is above 0 and at most 1")

    def __call__(self, evidence: Evidence) -> Tensor:
        losses = kernel_loss(evidence)
        # not an integer in general: the images at the threshold are then weighted in part
        count = self.share * len(losses)
        num_selected = min(math.ceil(count), len(losses))
        threshold = losses.topk(num_selected).values[-1]
        is_above = (losses > threshold).to(losses)
        is_tied = (losses == threshold).to(losses)
        tied_weight = (count - is_above.sum()) / is_tied.sum()
        return torch.log((is_above + is_tied * tied_weight) / self.share)
