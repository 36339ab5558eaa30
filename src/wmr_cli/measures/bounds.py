"""Bounds of A_rob and A_sa over all attacks in the ε-ball, from rows with verified margins.

An image is certified if a verifier has shown that no image in its ε-ball is misclassified, broken
if it is misclassified without or under the attack, and otherwise unknown. docs/bounds.md has the
proofs. The bounds hold for attackers that minimise the probability margin of every image.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accuracy import Floats, Outcome, exponential_log_weights, is_correct
from .intervals import Estimate, wilson

Mask = NDArray[np.bool_]
VERIFIED_LOGIT_MARGIN = "certify/logit_margin"
VERIFIED_MARGIN = "certify/margin"
"""Rows with lower bounds of the margins over the ε-ball."""
ROUNDING = 1e-12
"""Margins that differ by less than this are equal up to the rounding of a softmax."""


class AccuracyBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of an accuracy, with an interval for other test images."""

    lower: float
    upper: float
    low: float
    high: float


class AlphaBounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of A_sa at one alpha_test; null for other kernels than `exp`."""

    alpha_test: float | None
    a_sa: AccuracyBounds | None
    a_sa_fixed: AccuracyBounds | None


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of images, and bounds of accuracies, by a verifier."""

    verifier: str
    certified: int
    broken: int
    unknown: int
    a_rob: AccuracyBounds
    by_alpha: list[AlphaBounds]

    def list_pairs(self) -> Iterator[AccuracyBounds]:
        """Yield the bounds of A_rob, then those of A_sa."""
        yield self.a_rob
        for row in self.by_alpha:
            yield from (pair for pair in (row.a_sa, row.a_sa_fixed) if pair is not None)


def bound_probability_margin(differences: ArrayLike) -> Floats:
    """Return the lowest probability margin (N,) for logit differences of at least these, (N, K).

    A difference is the true logit minus another one. That of the true class itself is +inf.
    """
    bounds = np.asarray(differences, dtype=np.float64)
    least = bounds.min(axis=1)
    # exp of a negative number overflows only where the other branch is used
    odds = np.exp(-np.maximum(bounds, 0))
    robust = (1 - odds.max(axis=1)) / (1 + odds.sum(axis=1))
    # (1 - E) / (1 + E) with E = exp(-least), in a form that cannot overflow
    return np.asarray(np.where(least >= 0, robust, np.tanh(np.minimum(least, 0) / 2)))


class BoundOutcomes(NamedTuple):
    """The outcomes of lowest and of highest accuracy."""

    lower: Outcome
    upper: Outcome


@dataclass(frozen=True)
class VerifiedMargins:
    """Bounds (N,) of each image's smallest probability margin, and what is known of it, (N,)."""

    lower: Floats
    upper: Floats
    certified: Mask
    broken: Mask
    attacked: Floats | None
    """The margins under the attack; None for attacks without margins."""

    @classmethod
    def of(cls, rows: Mapping[str, NDArray[Any]]) -> "VerifiedMargins | None":
        """Return what the rows contain; None for rows without a verifier."""
        if VERIFIED_LOGIT_MARGIN not in rows:
            return None
        broken = ~is_correct(rows, "clean")
        upper = np.asarray(rows["clean/margin"], dtype=np.float64)
        attacked = rows.get("uniform/margin")
        if "uniform/prediction" in rows:
            broken = broken | ~is_correct(rows, "uniform")
        # attacks that stop early have no margins; clean images are in the ball as well
        if attacked is not None:
            upper = np.minimum(upper, attacked)
        upper = np.where(broken, np.minimum(upper, 0), upper)
        return cls(
            lower=np.minimum(np.asarray(rows[VERIFIED_MARGIN], dtype=np.float64), upper),
            upper=upper,
            certified=np.asarray(rows[VERIFIED_LOGIT_MARGIN] > 0),
            broken=broken,
            attacked=attacked,
        )

    @property
    def statuses(self) -> NDArray[np.str_]:
        """`certified`, `broken` or `unknown` for each image."""
        return np.select([self.certified, self.broken], ["certified", "broken"], "unknown")

    def robust_outcomes(self) -> BoundOutcomes:
        """Return the outcomes that bound A_rob."""
        return BoundOutcomes(Outcome(self.certified), Outcome(~self.broken))

    def sampled_outcomes(self, alpha: float) -> BoundOutcomes:
        """Return the outcomes that bound A_sa."""
        heavy = exponential_log_weights(self.lower, alpha)
        light = exponential_log_weights(self.upper, alpha)
        # an image that counts as correct has a margin of at least 0
        robust = exponential_log_weights(np.maximum(self.lower, 0), alpha)
        return BoundOutcomes(
            Outcome(self.certified, np.where(self.certified, light, heavy)),
            Outcome(~self.broken, np.where(self.broken, light, robust)),
        )

    def fixed_outcomes(self, alpha: float) -> BoundOutcomes | None:
        """Return the outcomes that bound A_sa with the weights of the attack that was run."""
        if self.attacked is None:
            return None
        weights = exponential_log_weights(self.attacked, alpha)
        return BoundOutcomes(Outcome(self.certified, weights), Outcome(~self.broken, weights))


def find_contradictions(rows: Mapping[str, NDArray[Any]]) -> Mask | None:
    """Return the images (N,) whose verified bounds an image in the ball violates.

    These are misclassified although certified, or have a lower margin than the verified one. The
    result is None for rows without a verifier.
    """
    if VERIFIED_LOGIT_MARGIN not in rows:
        return None
    certified = rows[VERIFIED_LOGIT_MARGIN] > 0
    found = np.zeros(len(certified), dtype=bool)
    for name in rows:
        prefix, _, quantity = name.rpartition("/")
        if quantity == "prediction":
            found |= certified & ~is_correct(rows, prefix)
        if quantity == "margin" and name != VERIFIED_MARGIN:
            found |= rows[name] < rows[VERIFIED_MARGIN] - ROUNDING
    return found


def bound_accuracy(lower: Estimate, upper: Estimate, images: int) -> AccuracyBounds:
    """Return the values of two estimates, from the lower end of one to the upper end of the other.

    A weighted estimate has no interval where all images agree; Wilson's interval replaces it.
    """
    low = lower.low
    if lower.degenerate:
        low = wilson(round(lower.value) * images, images).low
    high = upper.high
    if upper.degenerate:
        high = wilson(round(upper.value) * images, images).high
    return AccuracyBounds(
        lower=lower.value,
        upper=upper.value,
        # an interval by resampling need not contain its value
        low=min(low, lower.value),
        high=max(high, upper.value),
    )
