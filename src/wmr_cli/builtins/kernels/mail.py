"""`mail`: a sigmoid of the margin."""

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from ...core.losses import probability_margin
from ...core.protocols import Evidence
from ...core.traits import KernelTraits
from ...errors import BadInput
from ...spec import parse_number


@dataclass(frozen=True)
class Mail:
    """A sigmoid of the probability margin, used after a burn-in of `start-epoch` epochs.

    The defaults are those for adversarial training; with TRADES the authors use
    `mail:slope=2,bias=0`. Their code multiplies by a constant (`scale=const:3`), their paper
    divides by the mean (`scale=mean1`).

    Weight: `scale * sigmoid(slope * (bias - margin))`, without gradient
    Good for: training on images near the decision boundary once the easy ones are learnt
    Reference: Wang et al. 2021, arXiv:2106.07904
    """

    slope: float = 10.0
    bias: float = -0.5
    scale: str = "const:3"
    start_epoch: int = 75

    def __post_init__(self) -> None:
        kind, _, factor = self.scale.partition(":")
        is_known = (kind, bool(factor)) in (("const", True), ("mean1", False))
        if not is_known or (factor and parse_number(factor) <= 0):
            raise BadInput(
                f"`scale` of mail is {self.scale!r}",
                hint="`scale` is const:3, with any positive factor, or mean1",
            )
        if self.start_epoch < 0:
            raise BadInput(
                f"`start-epoch` is {self.start_epoch}", hint="`start-epoch` is at least 0"
            )

    @property
    def traits(self) -> KernelTraits:
        return KernelTraits(
            differentiable=False,
            normalized=self.scale == "mean1",
            start_epoch=self.start_epoch,
        )

    def __call__(self, evidence: Evidence) -> Tensor:
        margins = probability_margin(evidence.logits, evidence.labels)
        # a normalised weight needs no factor: the division by the mean would cancel it
        factor = 1.0
        if self.scale != "mean1":
            factor = parse_number(self.scale.removeprefix("const:"))
        return functional.logsigmoid(self.slope * (self.bias - margins)) + math.log(factor)
