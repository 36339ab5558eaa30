"""The mean of the worst share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.losses import kernel_loss
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Cvar:
    """Weighs the images of largest loss alike and the others not at all; those tied at the border share what is left.

    Weight: `1 / share` for the worst share of the batch, else 0, without gradient
    Good for: the conditional value at risk: an attacker who takes the worst tenth of the images
    Reference: Rockafellar and Uryasev 2000
    """

    share: float = 0.5

    traits = KernelTraits(differentiable=False, compares_images=True)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise BadInput(f"share is {self.share:g}", hint="share is above 0 and at most 1")

    def __call__(self, evidence: Evidence) -> Tensor:
        losses = kernel_loss(evidence)
        count = self.share * len(losses)
        border = losses.topk(min(int(-(-count // 1)), len(losses))).values[-1]
        above, tied = (losses > border).to(losses), (losses == border).to(losses)
        left = (count - above.sum()) / tied.sum()
        return torch.log((above + tied * left) / self.share)
