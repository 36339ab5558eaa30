"""How A_sa depends on the scale of the logits: the weak spot of weights that are made from probabilities."""

import numpy as np
from numpy.typing import ArrayLike

from .accuracy import weighted_accuracy
from .intervals import Estimate
from .score import Rows, correct
from .weights import Floats, exponential_log_weights


def tempered_accuracy(rows: Rows, alpha: float, temperature: float) -> Estimate:
    """A_sa with all logits divided by `temperature`. Every prediction stays as it is, the margins do not."""
    margins = probability_margins(rows["uniform/logits"], rows["label"], temperature)
    return weighted_accuracy(exponential_log_weights(margins, alpha), correct(rows, "uniform"))


def calibrated_accuracy(rows: Rows, alpha: float) -> Estimate:
    """A_sa of the calibrated network: the same for any scale of its logits. The interval takes the temperature as given."""
    return tempered_accuracy(rows, alpha, calibrating_temperature(rows["uniform/logits"], rows["label"]))


def calibrated_losses(rows: Rows, name: str) -> Floats:
    """Losses (N,) of the attacked images, `ce` or `margin`, of the calibrated network; as they are where every image is right."""
    if name not in ("ce", "margin"):
        raise ValueError(f"{name!r} is no loss that depends on the scale of logits")
    logits, labels = np.asarray(rows["uniform/logits"], dtype=np.float64), rows["label"]
    values = logits / calibrating_temperature(logits, labels)
    images = np.arange(len(values))
    own, highest = values[images, labels], values.max(axis=1)
    if name == "ce":
        return np.asarray(highest + np.log(np.exp(values - highest[:, None]).sum(axis=1)) - own)
    values[images, labels] = -np.inf
    return np.asarray(values.max(axis=1) - own)


def calibrating_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """What finite logits (N, C) must be divided by for their probabilities to fit the labels (N,) best, by cross-entropy.

    Cross-entropy is convex in 1/T, so its slope has one zero. Infinity where nothing fits better than equal probabilities; 1
    where every label has the highest logit, as more confidence would always fit better, and no A_sa depends on it but by ties.
    """
    values, true = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    values = values - values.max(axis=1, keepdims=True)
    own = values[np.arange(len(values)), true]

    def slope(inverse: float) -> float:
        shares = np.exp(inverse * values)
        return float(((shares * values).sum(axis=1) / shares.sum(axis=1) - own).sum())

    if slope(0.0) >= 0:
        return np.inf
    if not own.any():
        return 1.0
    low, high = 0.0, 1 / float(-own.min())
    while slope(high) < 0:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / high


def ranked_accuracy(rows: Rows, alpha: float) -> Estimate:
    """A_sa with margins replaced by their ranks, spread evenly from -1 to 1: the same for any scale of the logits.

    Wrong images have the lowest ranks, so it follows from A_rob and the number of images alone, and says no more than A_rob does.
    The ranks are those of the logit margins; equal margins share their mean rank.
    """
    values, inverse, counts = np.unique(rows["uniform/logit_margin"], return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = ((ends - counts + ends - 1) / 2)[inverse]
    spread = 2 * ranks / max(len(ranks) - 1, 1) - 1 if len(values) > 1 else np.zeros(len(ranks))
    return weighted_accuracy(exponential_log_weights(spread, alpha), correct(rows, "uniform"))


def probability_margins(logits: ArrayLike, labels: ArrayLike, temperature: float = 1.0) -> Floats:
    """True probability minus the best other, (N, C) and (N,) to (N,)."""
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} is not positive")
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    shares = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows, true = np.arange(len(shares)), np.asarray(labels)
    others = shares.copy()
    others[rows, true] = -np.inf
    return np.asarray(shares[rows, true] - others.max(axis=1))
