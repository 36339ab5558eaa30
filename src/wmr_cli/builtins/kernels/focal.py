"""`focal`: focal weights."""

from dataclasses import dataclass

from torch import Tensor

from ...core.losses import log_probabilities
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput


@dataclass(frozen=True)
class Focal:
    """Weights by the probability of a misclassification.

    Weight: `(1 - p_y)^gamma`, with gradient
    Good for: less weight on images that are confidently correct; a weight is at most 1
    Reference: Lin et al. 2017, arXiv:1708.02002
    """

    gamma: float = 2.0

    traits = KernelTraits()

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise BadInput(
                f"`gamma` is {self.gamma:g}", hint="`gamma` is at least 0; 0 gives equal weights"
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        labels = evidence.labels[:, None]
        others = log_probabilities(evidence.logits).scatter(1, labels, float("-inf"))
        # the sum over the other classes: 1 - p_y rounds to 0 where p_y is nearly 1
        return self.gamma * others.logsumexp(dim=1)
