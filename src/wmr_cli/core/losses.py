"""Margins: how far the true class is ahead of the best other one. Negative where the prediction is wrong, ties aside.

Per-image losses, (N,).
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from .protocols import Evidence


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """True score minus best other score. (N, C) and (N,) to (N,)."""
    true = scores.gather(1, labels[:, None]).squeeze(1)
    others = scores.scatter(1, labels[:, None], float("-inf"))
    return true - others.amax(dim=1)


def upcast_half(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a softmax; anything finer stays as it is."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The paper's margin, p_y - max p_t, in [-1, 1] (Definition 1)."""
    return margin(upcast_half(logits).softmax(dim=1), labels)


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - max z_t: the same sign as the probability margin, and never saturated."""
    return margin(upcast_half(logits), labels)


@cache
def widest_float_dtype(device: torch.device) -> torch.dtype:
    """The widest_float_dtype numbers that a device can hold: float64, but not everywhere."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log p_y; with smoothing, that share of the mean over all classes instead."""
    return functional.cross_entropy(
        upcast_half(logits), labels, reduction="none", label_smoothing=smoothing
    )


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax. (N, C) to the same."""
    return upcast_half(logits).log_softmax(dim=1)


def kl_divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """KL(target || other) from two log-probabilities (N, C): finite where plain probabilities would give 0 * -inf."""
    return functional.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=1)


def kernel_loss(evidence: Evidence) -> Tensor:
    """The loss that a kernel weighs by, (N,) without gradient: the one it is told, or cross-entropy."""
    told = (
        cross_entropy(evidence.logits, evidence.labels) if evidence.loss is None else evidence.loss
    )
    return told.detach()
