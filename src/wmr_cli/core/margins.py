"""Margins: how far the true class is ahead of the best other one. Negative where the prediction is wrong, ties aside."""

from functools import cache

import torch
from torch import Tensor


def margin(scores: Tensor, labels: Tensor) -> Tensor:
    """True score minus best other score. (N, C) and (N,) to (N,)."""
    true = scores.gather(1, labels[:, None]).squeeze(1)
    others = scores.scatter(1, labels[:, None], float("-inf"))
    return true - others.amax(dim=1)


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a softmax; anything finer stays as it is."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def probability_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The paper's margin, p_y - max p_t, in [-1, 1] (Definition 1)."""
    return margin(at_least_float32(logits).softmax(dim=1), labels)


def logit_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y - max z_t: the same sign as the probability margin, and never saturated."""
    return margin(at_least_float32(logits), labels)


@cache
def finest(device: torch.device) -> torch.dtype:
    """The finest numbers that a device can hold: float64, but not everywhere."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64
