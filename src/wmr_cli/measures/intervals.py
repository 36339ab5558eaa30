"""Confidence intervals of accuracies: Wilson for A_nat and A_rob, delta method for A_sa and A_tr.

All intervals are 95 % intervals over the sampling of test images. `accuracy.py` computes the
variance that `logit_delta` takes, `bootstrap.py` has intervals by resampling, and `seeds.py`
has intervals over training seeds.
"""

import math
from statistics import NormalDist

import msgspec

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An accuracy in [0, 1] with its 95 % interval; `ess` is set for weighted accuracies.

    A weighted interval has no width if all images are correct or all are misclassified.
    It is [0, 1] if one image has all the weight.
    """

    value: float
    low: float
    high: float
    ess: float | None = None

    @property
    def degenerate(self) -> bool:
        """Whether the interval has no width and so carries no information."""
        return self.low == self.high


def wilson(hits: int, total: int, looks: int = 1) -> Estimate:
    """Return A_nat or A_rob with Wilson's score interval.

    With several `looks`, all of these intervals cover their values jointly with 95 % (Bonferroni).
    """
    if total < 1:
        raise ValueError("an interval needs at least one image")
    # Bonferroni: each of k intervals may miss with probability 5 % / k
    z = Z95 if looks == 1 else NormalDist().inv_cdf(1 - 0.025 / looks)
    fraction = hits / total
    z2 = z**2 / total
    centre = (fraction + z2 / 2) / (1 + z2)
    half = z * math.sqrt(fraction * (1 - fraction) / total + z2 / (4 * total)) / (1 + z2)
    # Wilson's interval ends at exactly 0 without hits and at exactly 1 without misses;
    # rounding would move these ends
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == total else min(1.0, centre + half)
    return Estimate(fraction, low, high)


def logit_delta(value: float, variance: float, ess: float) -> Estimate:
    """Return A_sa or A_tr with its delta-method interval.

    The interval is symmetric on the logit scale, which keeps it inside [0, 1].
    """
    # one image has all the weight: the variance estimate is 0 and means nothing
    if variance <= 0 or not 0 < value < 1:
        return Estimate(value, 0.0, 1.0, ess)
    centre = math.log(value) - math.log1p(-value)
    # d logit(p) / dp = 1 / (p (1 - p))
    half = Z95 * math.sqrt(variance) / (value * (1 - value))
    return Estimate(value, _logistic(centre - half), _logistic(centre + half), ess)


def _logistic(x: float) -> float:
    # exp of a positive number may overflow, so each sign has its own form
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))
