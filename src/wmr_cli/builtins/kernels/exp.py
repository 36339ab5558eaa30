"""`exp`, `exp-logit` and `none`: the paper's kernel, its form on logits, and equal weights."""

from dataclasses import dataclass

from torch import Tensor

from ...core.losses import logit_margin, probability_margin
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Exponential:
    """The paper's kernel. With alpha = 0 all images have the same weight.

    Weight: `exp(-alpha * (p_y - max p_t))`, with gradient
    Good for: attackers that prefer vulnerable images, in training and as a metric
    Reference: Zeng et al. 2021, arXiv:2010.12989
    """

    alpha: float = 1.0

    traits = KernelTraits()

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadInput(
                f"`alpha` is {self.alpha:g}",
                hint="`alpha` is at least 0; 0 is the unweighted baseline",
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * probability_margin(evidence.logits, evidence.labels)


@dataclass(frozen=True)
class ExponentialOfLogits:
    """Weights by the margin of the logits, which does not saturate as probabilities do.

    Weight: `exp(-alpha * clip(z_y - max z_t, -clip, clip))`, with gradient
    Good for: distinguishing images whose probabilities are all near 0 or 1
    Reference: a variant of Zeng et al. 2021, arXiv:2010.12989
    """

    alpha: float = 1.0
    clip: float = 10.0

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.clip <= 0:
            raise BadInput(
                f"`alpha` is {self.alpha:g}, `clip` is {self.clip:g}",
                hint="`alpha` is at least 0, `clip` is positive",
            )

    @property
    def traits(self) -> KernelTraits:
        return KernelTraits(max_margin=self.clip)

    def __call__(self, evidence: Evidence) -> Tensor:
        margins = logit_margin(evidence.logits, evidence.labels)
        return -self.alpha * margins.clamp(-self.clip, self.clip)


@dataclass(frozen=True)
class Uniform:
    """Equal weights.

    Weight: `1`
    Good for: a defense as in its own paper
    """

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))
