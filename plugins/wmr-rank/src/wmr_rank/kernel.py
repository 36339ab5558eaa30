"""The paper's kernel with every margin replaced by its rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wmr_cli import BadInput
from wmr_cli.core import Evidence, KernelTraits, logit_margin, widest_float_dtype


@dataclass(frozen=True)
class Rank:
    """Weights by the rank of an image: in the batch in training, among all images in evaluation.

    Ranks are those of the logit margin `z_y - max z_t`, evenly spaced from -1 for the lowest margin
    to 1; equal margins get their mean rank. A temperature does not change the order of logit
    margins, but it does change that of probability margins.

    Weight: `exp(-alpha * rank)`, divided by the batch's mean, without gradient
    Good for: comparing networks whose logits have different scales
    Reference: a variant of Zeng et al. 2021, arXiv:2010.12989
    """

    alpha: float = 1.0

    traits = KernelTraits(differentiable=False, compares_images=True, normalized=True)

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadInput(
                f"`alpha` is {self.alpha:g}",
                hint="`alpha` is at least 0; 0 gives equal weights",
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        logits = evidence.logits.detach()
        # in float32 close margins would be equal
        margins = logit_margin(logits.to(widest_float_dtype(logits.device)), evidence.labels)
        return (-self.alpha * spread_ranks(margins)).to(logits.dtype)


def spread_ranks(values: Tensor) -> Tensor:
    """Return the ranks (N,) of values (N,), evenly spaced from -1 to 1; ties get their mean."""
    if len(values) <= 1:
        return torch.zeros_like(values)
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    ranks: Tensor = ((2 * ends - counts - 1) / 2).to(values.dtype)[inverse]
    return 2 * ranks / (len(values) - 1) - 1
