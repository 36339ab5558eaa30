"""Per-image losses, (N,)."""

from torch import Tensor
from torch.nn import functional

from .contracts import Evidence
from .margins import at_least_float32


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log p_y; with smoothing, that share of the mean over all classes instead."""
    return functional.cross_entropy(at_least_float32(logits), labels, reduction="none", label_smoothing=smoothing)


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax. (N, C) to the same."""
    return at_least_float32(logits).log_softmax(dim=1)


def kl_divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """KL(target || other) from two log-probabilities (N, C): finite where plain probabilities would give 0 * -inf."""
    return functional.kl_div(log_probs, target, reduction="none", log_target=True).sum(dim=1)


def loss_of(evidence: Evidence) -> Tensor:
    """The loss that a kernel weighs by, (N,) without gradient: the one it is told, or cross-entropy."""
    told = cross_entropy(evidence.logits, evidence.labels) if evidence.loss is None else evidence.loss
    return told.detach()
