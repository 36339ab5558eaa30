"""Margins and losses, one value per image (N,).

A margin is the score of the true class minus the best other score. It is negative where the
prediction is misclassified, except at ties.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from .protocols import Evidence


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


def kl_divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """KL(target || other) from two log-probabilities (N, C)."""
    # log_target: a probability that underflows to 0 would give 0 * -inf = NaN
    return functional.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=1)


def kernel_loss(evidence: Evidence) -> Tensor:
    """Return the loss (N,) that a kernel weights by, detached: the given one, or cross-entropy."""
    if evidence.loss is not None:
        return evidence.loss.detach()
    return cross_entropy(evidence.logits, evidence.labels).detach()
