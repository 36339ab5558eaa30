"""Margins, losses and what attacks maximise, with one value per image (N,).

A margin is the score of the true class minus the best other score. It is negative where the
prediction is misclassified, except at ties.

An objective is a loss that attacks maximise: `ce`, `kl`, `margin`, `pmargin`, `cw`, `dlr`, and
their targeted and weighted forms. It is a function of (logits, labels). An objective that holds
state per image can be indexed by rows. An objective whose value is not what the attack should
compare images by has a method `rank`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import UnknownName, did_you_mean
from .protocols import Evidence, HoldsRows, Kernel, Objective, RanksImages, SecondLabels

CW_CONFIDENCE = 50.0
"""The `cw` loss stops growing where the best other logit exceeds the true one by this much."""
MIN_DLR_CLASSES = 3
"""The DLR loss divides by the difference between the first and the third logit."""
MIN_TARGETED_DLR_CLASSES = 4
"""The targeted DLR loss divides by the largest logit minus the mean of the third and fourth."""
MAX_TARGETS = 9
"""Number of target classes, as in the standard AutoAttack: all wrong ones of ten classes."""
_TINY = 1e-12
"""Added to the denominator of a DLR loss, which is 0 where its logits are equal."""


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the true score minus the best other score. (N, C) and (N,) to (N,)."""
    true = scores.gather(1, labels[:, None]).squeeze(1)
    others = scores.scatter(1, labels[:, None], float("-inf"))
    return true - others.amax(dim=1)


def upcast_half(logits: Tensor) -> Tensor:
    """Convert half precision to float32; return float32 and float64 as they are."""
    # the 8 or 11 significant bits of half precision are too few for a softmax
    if logits.dtype in (torch.float32, torch.float64):
        return logits
    return logits.float()


def probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the paper's margin, p_y - max p_t, in [-1, 1] (Definition 1)."""
    return margin(upcast_half(logits).softmax(dim=1), labels)


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - max z_t: the same sign as the probability margin, without its saturation."""
    return margin(upcast_half(logits), labels)


@cache
def widest_float_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices without float64."""
    # MPS has no float64; creating an empty tensor is the only portable test
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log p_y; with smoothing, this fraction of it is replaced by the mean over all classes."""
    return functional.cross_entropy(
        upcast_half(logits), labels, reduction="none", label_smoothing=smoothing
    )


def log_probabilities(logits: Tensor) -> Tensor:
    """Log softmax. (N, C) to the same."""
    return upcast_half(logits).log_softmax(dim=1)


def kl_divergence(target_log_probs: Tensor, log_probs: Tensor) -> Tensor:
    """KL(target || other) from two log-probabilities (N, C)."""
    # log_target: a probability that underflows to 0 would give 0 * -inf = NaN
    divergence = functional.kl_div(log_probs, target_log_probs, reduction="none", log_target=True)
    return divergence.sum(dim=1)


def kernel_loss(evidence: Evidence) -> Tensor:
    """Return the loss (N,) that a kernel weights by, detached: the given one, or cross-entropy."""
    if evidence.loss is not None:
        return evidence.loss.detach()
    return cross_entropy(evidence.logits, evidence.labels).detach()


# Objectives: the losses that attacks maximise.


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
class MixedObjective:
    """The mean of an objective over both labels of mixed images, weighted by their parts."""

    loss: Objective
    second: SecondLabels

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.second.mix(self.loss(logits, labels), self.loss(logits, self.second.labels))

    def __getitem__(self, rows: Tensor) -> "MixedObjective":
        return MixedObjective(select_rows(self.loss, rows), self.second.select(rows))


@dataclass(frozen=True, eq=False)
class WeightedObjective:
    """Weight times loss, in a form that cannot overflow.

    exp(a - stopgrad(a)) * loss has the value of the loss, and the gradient of exp(a) * loss
    divided by exp(a). Steps per image ignore the scale of a gradient (sign, unit norm), so the
    iterates are the same. A detached weight would be such a scale, and so have no effect.
    """

    loss: Objective
    kernel: Kernel

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        values = self.loss(logits, labels)
        log_weights = self.kernel(Evidence(logits, labels, loss=values))
        # equal weights change neither value nor gradient
        if not log_weights.requires_grad:
            return values
        # -inf - -inf would be NaN: an image of weight zero follows its plain loss
        change = log_weights - log_weights.detach()
        change = change.masked_fill(log_weights == -torch.inf, 0.0)
        return change.exp() * values

    def rank(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return log(weight * loss), (N,). The value of a call is the loss without its weight."""
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


def mix_objective(objective: Objective, second: SecondLabels | None) -> Objective:
    """Return the objective of images with these second labels, or of images that are not mixed."""
    # a divergence does not depend on labels
    if second is None or isinstance(objective, KlObjective):
        return objective
    return MixedObjective(objective, second)


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
    # without a gradient, a weight only scales the gradient of its image, which steps ignore
    if not kernel.traits.differentiable:
        return get_objective(loss)
    return WeightedObjective(_NON_NEGATIVE.get(loss) or get_objective(loss), kernel)
