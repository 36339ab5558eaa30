"""What attacks maximise: `ce`, `kl`, `margin`, `pmargin`, `cw`, `dlr`, targeted and weighted forms.

An objective is a function of (logits, labels) with one value per image. An objective that holds
state per image can be indexed by rows. An objective whose value is not what the attack should
compare images by has a method `rank`.
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
"""Lead of another class, in logits, at which the `cw` loss stops growing."""
MIN_DLR_CLASSES = 3
"""The DLR loss divides by the difference between the first and the third logit."""
MIN_TARGETED_DLR_CLASSES = 4
"""The targeted DLR loss divides by the difference between the first logit and the next two."""
MAX_TARGETS = 9
"""Number of target classes, as in the standard AutoAttack: all wrong ones of ten classes."""
_TINY = 1e-12
"""Added to the denominator of a DLR loss, which is 0 where its logits are equal."""


def margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`margin`: the best other logit minus the true one, without a clamp."""
    return -logit_margin(logits, labels)


def probability_margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`pmargin`: minus the probability margin."""
    return -probability_margin(logits, labels)


def cw_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`cw`: the margin loss up to `CW_CONFIDENCE` (Carlini and Wagner 2017, arXiv:1608.04644)."""
    return margin_loss(logits, labels).clamp(max=CW_CONFIDENCE)


def dlr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`dlr`: the difference-of-logits ratio (Croce and Hein 2020, arXiv:2003.01690).

    The margin loss divided by the difference between the first and the third logit. It is
    invariant to shifting and scaling of all logits, and at least -1. With two classes it is the
    margin loss.
    """
    if logits.shape[1] < MIN_DLR_CLASSES:
        return margin_loss(logits, labels)
    largest = upcast_half(logits).topk(3, dim=1).values
    return margin_loss(logits, labels) / (largest[:, 0] - largest[:, 2] + _TINY)


def most_likely_targets(logits: Tensor, labels: Tensor, count: int = MAX_TARGETS) -> Tensor:
    """Return the most likely wrong classes, likeliest first. (N, C) to (N, min(count, C - 1))."""
    # -inf for the true class, so that it is never a target
    others = logits.detach().scatter(1, labels[:, None], float("-inf"))
    return others.topk(min(count, logits.shape[1] - 1), dim=1).indices


def targeted_margin_loss(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """Return the target's logit minus the true one, (N,)."""
    scores = upcast_half(logits)
    return (scores.gather(1, targets[:, None]) - scores.gather(1, labels[:, None])).squeeze(1)


@dataclass(frozen=True, eq=False)
class TargetedDlrLoss:
    """The targeted DLR loss (Croce and Hein 2020, arXiv:2003.01690), for targets (N,).

    The targeted margin loss divided by the largest logit minus the mean of the third and fourth.
    With fewer than four classes it is the targeted margin loss.
    """

    targets: Tensor

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        lead = targeted_margin_loss(logits, labels, self.targets)
        if logits.shape[1] < MIN_TARGETED_DLR_CLASSES:
            return lead
        largest = upcast_half(logits).topk(4, dim=1).values
        return lead / (largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2 + _TINY)

    def __getitem__(self, rows: Tensor) -> "TargetedDlrLoss":
        return TargetedDlrLoss(self.targets[rows])


@dataclass(frozen=True, eq=False)
class KlObjective:
    """`kl`: KL(p(x) || p(x')), from the natural log-probabilities (N, C)."""

    # constant during an attack, so computed once and not in every step
    natural: Tensor

    @classmethod
    def from_logits(cls, clean_logits: Tensor) -> "KlObjective":
        """Build the objective from the logits (N, C) of the clean images."""
        return cls(log_probabilities(clean_logits.detach()))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return kl_divergence(self.natural, log_probabilities(logits))

    def __getitem__(self, rows: Tensor) -> "KlObjective":
        return KlObjective(self.natural[rows])


@dataclass(frozen=True, eq=False)
class WeightedObjective:
    """`wce`, `wkl`: weight times loss, in a form that cannot overflow.

    exp(a - stopgrad(a)) * loss has the value of the loss, and the gradient of exp(a) * loss
    divided by exp(a). Steps per image ignore the scale of a gradient (sign, unit norm), so the
    iterates are the same. A detached weight would cancel entirely.
    """

    loss: Objective
    kernel: Kernel

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        values = self.loss(logits, labels)
        log_weights = self.kernel(Evidence(logits, labels, loss=values))
        # -inf - -inf would be NaN: an image of weight zero follows its plain loss
        change = torch.where(log_weights == -torch.inf, 0.0, log_weights - log_weights.detach())
        return change.exp() * values

    def rank(self, logits: Tensor, labels: Tensor) -> Tensor:
        """log(weight * loss), (N,), which the value does not contain."""
        values = self.loss(logits, labels)
        log_weights = self.kernel(Evidence(logits, labels, loss=values))
        # a logarithm in float32 would make close losses equal
        dtype = widest_float_dtype(values.device)
        # a loss of 0 counts as the smallest number, so that ranks stay finite
        return log_weights.to(dtype) + values.to(dtype).clamp(min=torch.finfo(dtype).tiny).log()

    def __getitem__(self, rows: Tensor) -> "WeightedObjective":
        return WeightedObjective(select_rows(self.loss, rows), self.kernel)


def select_rows(objective: Objective, rows: Tensor) -> Objective:
    """Return the objective of these rows of a batch."""
    if isinstance(objective, HoldsRows):
        return objective[rows]
    return objective


def ranking_scores(objective: Objective, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the scores (N,) that compare candidates: the rank of the objective, or its value."""
    if isinstance(objective, RanksImages):
        return objective.rank(logits, labels).detach()
    return objective(logits, labels).detach()


# Weights need a loss that is never negative. The margin loss is negative where an image is still
# correct, and a larger weight would lower it.


def positive_margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Softplus of the margin loss."""
    return functional.softplus(margin_loss(logits, labels))


def positive_probability_margin_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """1 minus the probability margin, in [0, 2]."""
    return 1 - probability_margin(logits, labels)


def positive_cw_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Softplus of the `cw` loss."""
    return functional.softplus(cw_loss(logits, labels))


def positive_dlr_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """1 plus the DLR loss; with two classes the softplus of the margin loss."""
    if logits.shape[1] < MIN_DLR_CLASSES:
        return positive_margin_loss(logits, labels)
    return 1 + dlr_loss(logits, labels)


OBJECTIVES: Mapping[str, Objective] = {
    "ce": cross_entropy,
    "margin": margin_loss,
    "pmargin": probability_margin_loss,
    "cw": cw_loss,
    "dlr": dlr_loss,
}
"""Objectives of logits and labels alone, which an attack may name as its `loss`."""

_NON_NEGATIVE: Mapping[str, Objective] = {
    "margin": positive_margin_loss,
    "pmargin": positive_probability_margin_loss,
    "cw": positive_cw_loss,
    "dlr": positive_dlr_loss,
}


def get_objective(loss: str) -> Objective:
    """Return the objective that an attack names as its `loss`."""
    if loss not in OBJECTIVES:
        raise UnknownName(f"no objective is called {loss!r}", hint=did_you_mean(loss, OBJECTIVES))
    return OBJECTIVES[loss]


def weighted_objective(loss: str, kernel: Kernel) -> Objective:
    """Return the objective of A_tr for an attack with this `loss`."""
    # weights without gradient cancel in the attack
    if not kernel.traits.differentiable:
        return get_objective(loss)
    return WeightedObjective(_NON_NEGATIVE.get(loss) or get_objective(loss), kernel)
