"""The paper's kernel with every margin replaced by its rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from wmr_cli import BadInput
from wmr_cli.core import Evidence, KernelTraits, logit_margin, widest_float_dtype


@dataclass(frozen=True)
class Rank:
    """Weighs by the place of an image among the others: the batch in training, all images in an evaluation.

    Ranks are spread evenly from -1, the image nearest to a mistake or furthest behind, to 1; equal margins share their mean
    rank. They are those of the logit margin `z_y - max z_t`, whose order no temperature changes; the order of probability
    margins does change.

    Weight: `exp(-alpha * rank)`, divided by the batch's mean, without gradient
    Good for: comparing networks whose logits have different scales
    Reference: a variant of Zeng et al. 2021, arXiv:2010.12989
    """

    alpha: float = 1.0

    traits = KernelTraits(differentiable=False, compares_images=True, normalized=True)

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise BadInput(
                f"alpha is {self.alpha:g}",
                hint="alpha is not negative; 0 weighs all images the same",
            )

    def __call__(self, evidence: Evidence) -> Tensor:
        fine = evidence.logits.detach().to(
            widest_float_dtype(evidence.logits.device)
        )  # float32 would take close margins for equal
        ranks = spread_ranks(logit_margin(fine, evidence.labels))
        return (-self.alpha * ranks).to(evidence.logits.dtype)


def spread_ranks(values: Tensor) -> Tensor:
    """The rank of each value, (N,) to (N,), evenly from -1 to 1; equal ones share their mean, and one alone has 0."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    ranks = ((2 * ends - counts - 1) / 2).to(values.dtype)[inverse]
    return 2 * ranks / max(len(values) - 1, 1) - 1 if len(values) > 1 else torch.zeros_like(values)
