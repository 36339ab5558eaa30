"""The paper's kernel."""

from dataclasses import dataclass

from torch import Tensor

from ...core.losses import probability_margin
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Exponential:
    """The paper's kernel. alpha = 0 weighs all images the same.

    Weight: `exp(-alpha * (p_y - max p_t))`, with gradient
    Good for: an attacker who prefers vulnerable images, in training and as a metric
    Reference: Zeng et al. 2021, arXiv:2010.12989
    """

    alpha: float = 1.0

    traits = KernelTraits()

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadInput(
                f"alpha is {self.alpha:g}",
                hint="alpha is not negative; 0 is the unweighted baseline",
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * probability_margin(evidence.logits, evidence.labels)
