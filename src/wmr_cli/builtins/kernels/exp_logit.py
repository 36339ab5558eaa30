"""The paper's kernel on logits."""

from dataclasses import dataclass

from torch import Tensor

from ...core.losses import logit_margin
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class ExponentialOfLogits:
    """Weighs by the margin of the logits, which never saturates.

    Weight: `exp(-alpha * clip(z_y - max z_t, -clip, clip))`, with gradient
    Good for: telling apart images whose probabilities are all near 0 or 1
    Reference: a variant of Zeng et al. 2021, arXiv:2010.12989
    """

    alpha: float = 1.0
    clip: float = 10.0

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.clip <= 0:
            raise BadInput(
                f"alpha is {self.alpha:g}, clip is {self.clip:g}",
                hint="alpha is not negative, clip is positive",
            )

    @property
    def traits(self) -> KernelTraits:
        return KernelTraits(max_margin=self.clip)

    def __call__(self, evidence: Evidence) -> Tensor:
        return -self.alpha * logit_margin(evidence.logits, evidence.labels).clamp(
            -self.clip, self.clip
        )
