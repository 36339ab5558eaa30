"""No weighting."""

from dataclasses import dataclass

from torch import Tensor

from ...core.protocols import Evidence
from ...core.traits import KernelTraits


@dataclass(frozen=True)
class Uniform:
    """No weights.

    Weight: `1`
    Good for: a defense as its own paper has it
    """

    traits = KernelTraits()

    def __call__(self, evidence: Evidence) -> Tensor:
        return evidence.logits.new_zeros(len(evidence.labels))
