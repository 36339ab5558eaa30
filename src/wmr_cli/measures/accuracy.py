"""Accuracy under an attacker who chooses, from seven numbers that can be updated, merged and sent between ranks."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .intervals import Estimate, logit_delta, wilson
from .weights import Floats


@dataclass(frozen=True)
class WeightedAccuracy:
    """Sums over the images with any weight seen so far, scaled by exp(-peak) so that no weight overflows. Merging knows no order.

    With a_i the log-weight and c_i = 1 where image i is right: peak = max a, total = sum e^(a-peak),
    right = sum c e^(a-peak), and the same with squared weights.
    """

    peak: float = -math.inf
    total: float = 0.0
    right: float = 0.0
    total_squared: float = 0.0
    right_squared: float = 0.0
    images: int = 0
    hits: int = 0

    @classmethod
    def of(cls, log_weights: ArrayLike, correct: ArrayLike) -> "WeightedAccuracy":
        """The state of one set of images, (N,) and (N,)."""
        logs, hit = np.asarray(log_weights, dtype=np.float64), np.asarray(correct, dtype=bool)
        if logs.shape != hit.shape or logs.ndim != 1:
            raise ValueError(f"log-weights {logs.shape} and hits {hit.shape} must be two vectors of one length")
        if np.isnan(logs).any() or (logs == np.inf).any():
            raise ValueError(f"log-weight {int(np.flatnonzero(~(logs < np.inf))[0])} is not a number or -inf")
        logs, hit = logs[logs > -np.inf], hit[logs > -np.inf]  # an image without weight is never drawn
        if not len(logs):
            return cls()
        peak = float(logs.max())
        weights = np.exp(logs - peak)
        squared = weights * weights
        return cls(
            peak=peak,
            total=float(weights.sum()),
            right=float(weights[hit].sum()),
            total_squared=float(squared.sum()),
            right_squared=float(squared[hit].sum()),
            images=len(logs),
            hits=int(hit.sum()),
        )

    def update(self, log_weights: ArrayLike, correct: ArrayLike) -> "WeightedAccuracy":
        """The state with one more set of images, (N,) and (N,)."""
        return self.merge(WeightedAccuracy.of(log_weights, correct))

    def merge(self, other: "WeightedAccuracy") -> "WeightedAccuracy":
        """The state of both sets of images together."""
        peak = max(self.peak, other.peak)
        if peak == -math.inf:
            return self
        mine, theirs = math.exp(self.peak - peak), math.exp(other.peak - peak)
        return WeightedAccuracy(
            peak=peak,
            total=self.total * mine + other.total * theirs,
            right=self.right * mine + other.right * theirs,
            total_squared=self.total_squared * mine**2 + other.total_squared * theirs**2,
            right_squared=self.right_squared * mine**2 + other.right_squared * theirs**2,
            images=self.images + other.images,
            hits=self.hits + other.hits,
        )

    @property
    def value(self) -> float:
        """The weighted share of right images. One or zero exactly where all are right or all are wrong."""
        if self.images == 0:
            raise ValueError("no images were seen")
        if self.hits in (0, self.images):
            return float(self.hits > 0)
        return self.right / self.total

    @property
    def ess(self) -> float:
        """The effective sample size (Kish): how many equally weighted images the number rests on."""
        if self.images == 0:
            raise ValueError("no images were seen")
        return self.total**2 / self.total_squared

    @property
    def variance(self) -> float:
        """Of the self-normalised ratio, by the delta method."""
        value = self.value
        wrong_squared = self.total_squared - self.right_squared
        return max(0.0, self.right_squared * (1 - value) ** 2 + wrong_squared * value**2) / self.total**2

    def estimate(self) -> Estimate:
        """Value, logit-delta interval and effective sample size."""
        if self.hits in (0, self.images):
            return Estimate(self.value, self.value, self.value, self.ess)
        return logit_delta(self.value, self.variance, self.ess)


@dataclass(frozen=True)
class Outcome:
    """Which images are right, (N,), and the log-weights, (N,), by which the attacker draws them; none: all count the same."""

    correct: NDArray[np.bool_]
    log_weights: Floats | None = None

    def among(self, chosen: NDArray[np.bool_]) -> "Outcome":
        """The same of some of the images, chosen by a mask (N,)."""
        return Outcome(self.correct[chosen], None if self.log_weights is None else self.log_weights[chosen])

    def estimate(self) -> Estimate:
        """Wilson's interval of a plain share, the logit-delta interval of a weighted one."""
        return plain_accuracy(self.correct) if self.log_weights is None else weighted_accuracy(self.log_weights, self.correct)


def weighted_accuracy(log_weights: ArrayLike, correct: ArrayLike) -> Estimate:
    """A_sa or A_tr: accuracy when the attacker samples images by these weights."""
    return WeightedAccuracy.of(log_weights, correct).estimate()


def plain_accuracy(correct: ArrayLike) -> Estimate:
    """A_nat or A_rob: every image counts the same."""
    hit = np.asarray(correct, dtype=bool)
    return wilson(int(hit.sum()), hit.size)
