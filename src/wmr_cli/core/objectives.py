"""What attacks climb: `ce`, `kl`, `margin`, `pmargin`, `cw`, `dlr`, and their weighted forms.

An objective is a function of (logits, labels); one that holds state per image can be indexed by rows, and one whose
value is not what is to become large has a `rank`.

Target classes, and what an attack climbs to reach one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import UnknownName, did_you_mean
from .losses import (
    cross_entropy,
    kl_divergence,
    log_probabilities,
    logit_margin,
    probability_margin,
    upcast_half,
    widest_float_dtype,
)
from .protocols import Evidence, HoldsRows, Kernel, Objective, RanksImages

CW_CONFIDENCE = 50.0
"""How far another class must be ahead before `cw` is content."""
MIN_DLR_CLASSES = 3
"""The difference-of-logits ratio divides by the distance from the first to the third logit."""
_TINY = 1e-12
"""Added to a ratio's denominator, which is 0 where its logits are alike."""


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`margin`: the best other logit minus the true one, without a clamp."""
    return -logit_margin(logits, labels)


def probability_margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`pmargin`: minus the probability margin."""
    return -probability_margin(logits, labels)


def cw_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`cw`: the margin loss, which stops climbing at `CW_CONFIDENCE` (Carlini and Wagner 2017, arXiv:1608.04644)."""
    return margin_loss(logits, labels).clamp(max=CW_CONFIDENCE)


def dlr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`dlr`: the margin loss over the distance from the first to the third logit (Croce and Hein 2020, arXiv:2003.01690).

    Shifting or scaling all logits does not change it; it is -1 at least. With two classes it is the margin loss.
    """
    if logits.shape[1] < MIN_DLR_CLASSES:
        return margin_loss(logits, labels)
    largest = upcast_half(logits).topk(3, dim=1).values
    return margin_loss(logits, labels) / (largest[:, 0] - largest[:, 2] + _TINY)


@dataclass(frozen=True, eq=False)
class KlObjective:
    """`kl`: KL(p(x) || p(x')). The natural log-probabilities (N, C) are constant during an attack: computed once."""

    natural: Tensor

    @classmethod
    def from_logits(cls, clean_logits: Tensor) -> "KlObjective":
        return cls(log_probabilities(clean_logits.detach()))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return kl_divergence(self.natural, log_probabilities(logits))

    def __getitem__(self, rows: Tensor) -> "KlObjective":
        return KlObjective(self.natural[rows])


@dataclass(frozen=True, eq=False)
class WeightedObjective:
    """`wce`, `wkl`: weight times loss, in the form that cannot overflow.

    exp(a - stopgrad(a)) * loss has the value of the loss and the gradient of exp(a) * loss divided by exp(a): with a
    step per image that knows no scale (sign, unit norm) the iterates are the same. A detached weight would cancel.
    """

    loss: Objective
    kernel: Kernel

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        values = self.loss(logits, labels)
        log_weights = self.kernel(Evidence(logits, labels, loss=values))
        change = torch.where(log_weights == -torch.inf, 0.0, log_weights - log_weights.detach())
        return change.exp() * values

    def rank(self, logits: Tensor, labels: Tensor) -> Tensor:
        """log(weight * loss), (N,), finite: what the value cannot show. A loss of 0 counts as the smallest number."""
        values = self.loss(logits, labels)
        log_weights = self.kernel(Evidence(logits, labels, loss=values))
        fine = widest_float_dtype(
            values.device
        )  # a logarithm in float32 would take close losses for equal
        return log_weights.to(fine) + values.to(fine).clamp(min=torch.finfo(fine).tiny).log()

    def __getitem__(self, rows: Tensor) -> "WeightedObjective":
        return WeightedObjective(select_rows(self.loss, rows), self.kernel)


def select_rows(objective: Objective, rows: Tensor) -> Objective:
    """The objective of these images alone: for one without state per image, the objective itself."""
    return objective[rows] if isinstance(objective, HoldsRows) else objective


def ranking_scores(objective: Objective, logits: Tensor, labels: Tensor) -> Tensor:
    """What an attack that compares images of one row goes by, (N,) without gradient: the objective's `rank`, or its value."""
    values = objective.rank if isinstance(objective, RanksImages) else objective
    return values(logits, labels).detach()


def positive_margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """softplus of the margin loss. The margin loss is negative where the image survives: a larger weight would lower it."""
    return functional.softplus(margin_loss(logits, labels))


def positive_probability_margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """1 - m, for the same reason."""
    return 1 - probability_margin(logits, labels)


def positive_cw_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """softplus of `cw`, for the same reason."""
    return functional.softplus(cw_loss(logits, labels))


def positive_dlr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """1 + dlr, for the same reason; with two classes, where that is the margin loss, its softplus."""
    is_ratio = logits.shape[1] >= MIN_DLR_CLASSES
    return 1 + dlr_loss(logits, labels) if is_ratio else positive_margin_loss(logits, labels)


OBJECTIVES: Mapping[str, Objective] = {
    "ce": cross_entropy,
    "margin": margin_loss,
    "pmargin": probability_margin_loss,
    "cw": cw_loss,
    "dlr": dlr_loss,
}
"""Objectives that need nothing but logits and labels, so that an attack may name one as its `loss`."""

_WEIGHABLE: Mapping[str, Objective] = {
    "margin": positive_margin_loss,
    "pmargin": positive_probability_margin_loss,
    "cw": positive_cw_loss,
    "dlr": positive_dlr_loss,
}


def get_objective(loss: str) -> Objective:
    """The objective that an attack names as its `loss`."""
    if loss not in OBJECTIVES:
        raise UnknownName(f"no objective is called {loss!r}", hint=did_you_mean(loss, OBJECTIVES))
    return OBJECTIVES[loss]


def weighted_objective(loss: str, kernel: Kernel) -> Objective:
    """The objective of A_tr for an attack that climbs `loss`: weights need a loss that is never negative.

    Weights without gradient are none to climb.
    """
    if not kernel.traits.differentiable:
        return get_objective(loss)
    return WeightedObjective(_WEIGHABLE.get(loss) or get_objective(loss), kernel)


MAX_TARGETS = 9
"""As in the standard AutoAttack: of ten classes, all that are wrong."""
MIN_TARGETED_DLR_CLASSES = 4
"""The targeted ratio divides by the distance from the first logit to the third and fourth."""


def most_likely_targets(logits: Tensor, labels: Tensor, count: int = MAX_TARGETS) -> Tensor:
    """The most likely wrong classes of each image, the likeliest first. (N, C) to (N, min(count, C - 1))."""
    others = logits.detach().scatter(1, labels[:, None], float("-inf"))
    return others.topk(min(count, logits.shape[1] - 1), dim=1).indices


def targeted_margin_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The target's logit minus the true one, (N,)."""
    return (
        upcast_half(logits).gather(1, targets[:, None])
        - upcast_half(logits).gather(1, labels[:, None])
    ).squeeze(1)


@dataclass(frozen=True, eq=False)
class TargetedDlrLoss:
    """The targeted difference-of-logits ratio (Croce and Hein 2020, arXiv:2003.01690), for targets (N,).

    The target's logit minus the true one, over the distance from the largest logit to the mean of the third and the
    fourth; with fewer than four classes without that denominator.
    """

    targets: Tensor

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        ahead = targeted_margin_loss(logits, labels, self.targets)
        if logits.shape[1] < MIN_TARGETED_DLR_CLASSES:
            return ahead
        largest = upcast_half(logits).topk(4, dim=1).values
        return ahead / (largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2 + _TINY)

    def __getitem__(self, rows: Tensor) -> "TargetedDlrLoss":
        return TargetedDlrLoss(self.targets[rows])
