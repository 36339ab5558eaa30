"""Measure how A_sa depends on the scale of the logits: temperature, calibration, ranks.

A_cal is A_sa at the temperature that minimises the cross-entropy on the attacked images.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BadInput
from .accuracy import (
    MARGIN_KERNEL,
    FittedParameter,
    Floats,
    Outcome,
    Rows,
    exponential_log_weights,
    is_correct,
    weighted_accuracy,
)
from .intervals import Estimate

NO_LOGITS = "the rows hold no logits (they are compact, or the attack stops early)"
EQUAL_PROBABILITIES_FIT_BEST = (
    "equal probabilities fit the attacked images best, so that the temperature is infinite"
)
NO_MINIMUM = "every label has the highest logit, so that the temperature is 0"


@dataclass(frozen=True, eq=False)
class Calibration:
    """A model under attack with its logits divided by `temperature`, which fits best.

    `problem` is the reason if the temperature is None. Margins have one value per image, and
    `fit` holds the derivatives of margins and cross-entropy by log(1/T).
    """

    temperature: float | None
    problem: str | None = None
    correct: NDArray[np.bool_] | None = None
    margins: Floats | None = None
    fit: FittedParameter | None = None

    def outcome(self, alpha: float) -> Outcome | None:
        """Return the outcome for A_cal; None if it is not available.

        Without a finite temperature it is available if no temperature would change it.
        """
        if self.correct is None:
            return None
        if self.margins is None or self.fit is None:
            hits = int(self.correct.sum())
            if alpha == 0 or hits in (0, len(self.correct)):
                # at both ends of the temperature all margins of one outcome become equal
                return Outcome(self.correct, np.zeros(len(self.correct)))
            return None
        log_weights = exponential_log_weights(self.margins, alpha)
        fit = FittedParameter(-alpha * self.fit.slopes, self.fit.scores, self.fit.curvatures)
        return Outcome(self.correct, log_weights, fit)


def calibrate(rows: Rows, kernel: str = MARGIN_KERNEL) -> Calibration:
    """Fit the temperature to all images of the unweighted attack, with equal weights."""
    if kernel != MARGIN_KERNEL:
        return Calibration(None, f"the weights of kernel {kernel!r} are not computed from margins")
    if "uniform/logits" not in rows:
        return Calibration(None, NO_LOGITS)
    logits = rows["uniform/logits"]
    if not np.isfinite(logits).all():
        return Calibration(None, "a logit is not finite")
    labels = rows["label"]
    correct = is_correct(rows, "uniform")
    temperature = _best_temperature(logits, labels)
    if temperature == np.inf:
        return Calibration(None, EQUAL_PROBABILITIES_FIT_BEST, correct)
    if temperature == 0:
        return Calibration(None, NO_MINIMUM, correct)
    margins = probability_margins(logits, labels, temperature)
    fit = _differentiate(np.asarray(logits, dtype=np.float64) / temperature, labels)
    return Calibration(temperature, None, correct, margins, fit)


def _differentiate(logits: Floats, labels: ArrayLike) -> FittedParameter:
    """Return the derivatives by log(1/T) at T = 1, of margins (`slopes`) and cross-entropy."""
    values = logits - logits.max(axis=1, keepdims=True)
    probabilities = _probabilities(values)
    images = np.arange(len(values))
    true = np.asarray(labels)
    deviations = values - (probabilities * values).sum(axis=1, keepdims=True)
    others = values.copy()
    others[images, true] = -np.inf
    rival = others.argmax(axis=1)
    changes = probabilities * deviations
    return FittedParameter(
        slopes=np.asarray(changes[images, true] - changes[images, rival]),
        scores=np.asarray(-deviations[images, true]),
        curvatures=np.asarray((changes * deviations).sum(axis=1)),
    )


def tempered_accuracy(rows: Rows, alpha: float, temperature: float) -> Estimate:
    """Return A_sa with all logits divided by `temperature`, which changes no prediction."""
    margins = probability_margins(_attacked_logits(rows), rows["label"], temperature)
    return weighted_accuracy(exponential_log_weights(margins, alpha), is_correct(rows, "uniform"))


def calibrated_accuracy(rows: Rows, alpha: float) -> Estimate:
    """Return A_cal, which is A_sa at the temperature that fits best: any scale gives the same.

    The interval includes the uncertainty of the temperature.
    """
    _attacked_logits(rows)
    calibration = calibrate(rows)
    outcome = calibration.outcome(alpha)
    if outcome is None:
        raise BadInput(f"A_cal is not available: {calibration.problem}", hint="read A_rob and A_sa")
    return outcome.estimate()


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
    # 0 is not a temperature that logits could be divided by
    return _best_temperature(logits, labels) or 1.0


def _best_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature between 0 and infinity that minimises cross-entropy."""
    values = np.asarray(logits, dtype=np.float64)
    values = values - values.max(axis=1, keepdims=True)
    true = values[np.arange(len(values)), np.asarray(labels)]

    def derivative(inverse: float) -> float:
        weights = np.exp(inverse * values)
        return float(((weights * values).sum(axis=1) / weights.sum(axis=1) - true).sum())

    if derivative(0.0) >= 0:
        return np.inf
    if not true.any():
        return 0.0
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
    probabilities = _probabilities(np.asarray(logits, dtype=np.float64) / temperature)
    images = np.arange(len(probabilities))
    true = np.asarray(labels)
    others = probabilities.copy()
    others[images, true] = -np.inf
    return np.asarray(probabilities[images, true] - others.max(axis=1))


def _probabilities(logits: Floats) -> Floats:
    """Return softmax over classes, (N, C) to the same."""
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return np.asarray(probabilities)
