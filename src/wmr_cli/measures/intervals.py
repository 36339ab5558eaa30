"""An estimate and its 95 % interval. Intervals cover the sampling of test images, nothing else."""

import math
from statistics import NormalDist

import msgspec

Z95 = 1.959963984540054


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A share in [0, 1] with its 95 % interval, and for weighted shares the effective sample size.

    Where all images are right or all are wrong a weighted interval has no width: it says nothing then. Where one image has
    all the weight it is as wide as can be.
    """

    value: float
    low: float
    high: float
    ess: float | None = None

    @property
    def degenerate(self) -> bool:
        return self.low == self.high


def wilson(hits: int, total: int, looks: int = 1) -> Estimate:
    """Wilson's score interval of a plain share; with several `looks`, one so wide that all of them hold together.

    The second is Bonferroni's: each of k intervals may miss with probability 5 % / k.
    """
    if total < 1:
        raise ValueError("a share of nothing has no interval")
    z = Z95 if looks == 1 else NormalDist().inv_cdf(1 - 0.025 / looks)
    share, z2 = hits / total, z**2 / total
    centre = (share + z2 / 2) / (1 + z2)
    half = z * math.sqrt(share * (1 - share) / total + z2 / (4 * total)) / (1 + z2)
    # at the ends the interval closes on 0 or 1 exactly; rounding must not open it
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == total else min(1.0, centre + half)
    return Estimate(share, low, high)


def logit_delta(value: float, variance: float, ess: float) -> Estimate:
    """The delta-method interval of a weighted share, taken on the logit scale so that it stays inside [0, 1]."""
    if variance <= 0 or not 0 < value < 1:  # all weight on one image: anything may be true
        return Estimate(value, 0.0, 1.0, ess)
    centre = math.log(value) - math.log1p(-value)
    half = Z95 * math.sqrt(variance) / (value * (1 - value))
    return Estimate(value, _logistic(centre - half), _logistic(centre + half), ess)


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
