"""Measure how A_sa depends on the scale of the logits: temperature, calibration, ranks."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadInput
from .accuracy import Floats, Rows, exponential_log_weights, is_correct, weighted_accuracy
from .intervals import Estimate


def tempered_accuracy(rows: Rows, alpha: float, temperature: float) -> Estimate:
    """Return A_sa with all logits divided by `temperature`, which changes no prediction."""
    margins = probability_margins(_attacked_logits(rows), rows["label"], temperature)
    return weighted_accuracy(exponential_log_weights(margins, alpha), is_correct(rows, "uniform"))


def calibrated_accuracy(rows: Rows, alpha: float) -> Estimate:
    """Return A_sa of the calibrated model, which is independent of the scale of its logits.

    The interval does not include the uncertainty of the temperature.
    """
    temperature = calibrating_temperature(_attacked_logits(rows), rows["label"])
    return tempered_accuracy(rows, alpha, temperature)


def calibrated_losses(rows: Rows, name: str) -> Floats:
    """Return the losses (N,) of the calibrated model under attack, `ce` or `margin`.

    They are not rescaled if every image is correct.
    """
    if name not in ("ce", "margin"):
        raise ValueError(f"{name!r} is not a loss that depends on the scale of logits")
    labels = rows["label"]
    logits = np.asarray(_attacked_logits(rows), dtype=np.float64)
    values = logits / calibrating_temperature(logits, labels)
    images = np.arange(len(values))
    true = values[images, labels]
    if name == "ce":
        # log-sum-exp relative to the highest logit, so that exp cannot overflow
        highest = values.max(axis=1)
        return np.asarray(highest + np.log(np.exp(values - highest[:, None]).sum(axis=1)) - true)
    values[images, labels] = -np.inf
    return np.asarray(values.max(axis=1) - true)


def _attacked_logits(rows: Rows) -> NDArray[Any]:
    if "uniform/logits" not in rows:
        raise BadInput(
            "the rows hold no logits, so that their scale cannot be changed",
            hint="evaluate with `rows=full`",
        )
    return rows["uniform/logits"]


def calibrating_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature that minimises cross-entropy, for logits (N, C) and labels (N,).

    The result is infinity if equal probabilities fit best. It is 1 if every label has the highest
    logit: the cross-entropy then has no minimum, and A_sa depends on the scale only through ties.
    """
    values = np.asarray(logits, dtype=np.float64)
    values = values - values.max(axis=1, keepdims=True)
    true = values[np.arange(len(values)), np.asarray(labels)]

    def derivative(inverse: float) -> float:
        weights = np.exp(inverse * values)
        return float(((weights * values).sum(axis=1) / weights.sum(axis=1) - true).sum())

    if derivative(0.0) >= 0:
        return np.inf
    if not true.any():
        return 1.0
    # cross-entropy is convex in 1/T, so its derivative has one zero: bracket it, then bisect
    low = 0.0
    high = 1 / float(-true.min())
    while derivative(high) < 0:
        low = high
        high = 2 * high
    # down to neighbouring floats, so that the result needs no tolerance
    while low < (middle := (low + high) / 2) < high:
        if derivative(middle) < 0:
            low = middle
        else:
            high = middle
    return 1 / high


def ranked_accuracy(rows: Rows, alpha: float) -> Estimate:
    """Return A_sa with margins replaced by their ranks, spaced evenly from -1 to 1.

    Misclassified images have the lowest ranks, so the value follows from A_rob and the number of
    images alone. Ranks are those of the logit margins; equal margins share their mean rank.
    """
    values, inverse, counts = np.unique(
        rows["uniform/logit_margin"], return_inverse=True, return_counts=True
    )
    ends = np.cumsum(counts)
    ranks = ((ends - counts + ends - 1) / 2)[inverse]
    margins = np.zeros(len(ranks))
    if len(values) > 1:
        margins = 2 * ranks / max(len(ranks) - 1, 1) - 1
    return weighted_accuracy(exponential_log_weights(margins, alpha), is_correct(rows, "uniform"))


def probability_margins(logits: ArrayLike, labels: ArrayLike, temperature: float = 1.0) -> Floats:
    """Return true probability minus the highest other, (N, C) and (N,) to (N,)."""
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} is not positive")
    # float64: in float32 confident probabilities saturate to 1 and their margins tie
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    images = np.arange(len(probabilities))
    true = np.asarray(labels)
    others = probabilities.copy()
    others[images, true] = -np.inf
    return np.asarray(probabilities[images, true] - others.max(axis=1))
