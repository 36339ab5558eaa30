"""Focal weights."""

from dataclasses import dataclass

from torch import Tensor

from ...core.losses import log_probabilities
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Focal:
    """Weighs by the probability of a mistake.

    Weight: `(1 - p_y)^gamma`, with gradient
    Good for: turning from images that are right for sure; a weight is never above 1
    Reference: Lin et al. 2017, arXiv:1708.02002
    """

    gamma: float = 2.0

    traits = KernelTraits()

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise BadInput(
                f"gamma is {self.gamma:g}",
                hint="gamma is not negative; 0 weighs all images the same",
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        others = log_probabilities(evidence.logits).scatter(
            1, evidence.labels[:, None], float("-inf")
        )
        # the sum of the other classes: 1 - p_y would be 0 where p_y is nearly 1
        return self.gamma * others.logsumexp(dim=1)
