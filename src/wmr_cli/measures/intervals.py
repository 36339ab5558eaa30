"""Confidence intervals of accuracies: Wilson for A_nat and A_rob, delta method for A_sa and A_tr.

All intervals are 95 % intervals. Those of one accuracy cover the sampling of test images;
`accuracy.py` computes the variance that `logit_delta` takes, and `bootstrap.py` has intervals by
resampling. Variation over training seeds is separate: Student's and Welch's intervals at the end.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev

import msgspec

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""
T95 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
    2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450,
    2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""97.5 % quantile of Student's t for 1, 2, … degrees of freedom."""


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An accuracy in [0, 1] with its 95 % interval; `ess` is set for weighted accuracies.

    A weighted interval has no width if all images are correct or all are misclassified.
    Otherwise it is [0, 1] if one image has all the weight, up to rounding.
    """

    value: float
    low: float
    high: float
    ess: float | None = None

    @property
    def degenerate(self) -> bool:
        """Whether the interval has no width and so carries no information."""
        return self.low == self.high

    def __str__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        """Return `35.9 % [27.3, 45.5]`.

        A spec of floats, such as `.2f`, formats each percentage; any other spec formats the text.
        """
        is_numeric = spec[-1:] in tuple("eEfFgG")
        # 0.6175 may arrive as 0.61749999999, and must not be rounded down because of it
        percentages = [100 * round(part, 12) for part in (self.value, self.low, self.high)]
        value, low, high = (format(part, spec if is_numeric else ".1f") for part in percentages)
        text = f"{value} % [{low}, {high}]"
        return text if is_numeric else format(text, spec)


def wilson(hits: int, total: int, num_intervals: int = 1) -> Estimate:
    """Return A_nat or A_rob with Wilson's score interval.

    If it is one of `num_intervals`, all of them cover their values jointly with 95 % (Bonferroni).
    """
    if total < 1:
        raise ValueError("an interval needs at least one image")
    # Bonferroni: each of k intervals may miss with probability 5 % / k
    z = Z95 if num_intervals == 1 else NormalDist().inv_cdf(1 - 0.025 / num_intervals)
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
    # `WeightedAccuracy.estimate` handles images that are all correct or all misclassified, so a
    # value of 0 or 1 arises here only by rounding. Its logit would be infinite.
    # the variance is 0 if one image has all the weight: the estimate then means nothing
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


class Spread(msgspec.Struct, frozen=True):
    """Mean and standard deviation of a value over two or more training seeds."""

    mean: float
    sd: float
    seeds: int


def mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of value and interval over seeds, with the smallest ESS.

    All seeds are measured on the same images, so their errors are correlated. The mean of their
    intervals is therefore never too narrow.
    """
    if len(estimates) == 1:
        return estimates[0]
    sizes = [estimate.ess for estimate in estimates if estimate.ess is not None]
    return Estimate(
        fmean(estimate.value for estimate in estimates),
        fmean(estimate.low for estimate in estimates),
        fmean(estimate.high for estimate in estimates),
        min(sizes, default=None),
    )


def spread(values: Sequence[float]) -> Spread | None:
    """Return mean and standard deviation over seeds; None for a single seed."""
    if len(values) < 2:
        return None
    return Spread(fmean(values), stdev(values), len(values))


def seeds_interval(
    these: Mapping[int, float], others: Mapping[int, float]
) -> tuple[float, float] | None:
    """Return the 95 % interval of a difference of means over seeds; values are given by seed.

    It covers other training seeds on the same test images. Equal seeds are compared in pairs
    (Student), other seeds as two samples (Welch). If one side has a single seed, the variance of
    the other side is used for both. The result is None if both sides have a single seed.
    """
    if not these or not others or len(these) + len(others) < 3:
        return None
    difference = fmean(these.values()) - fmean(others.values())
    if len(these) < 2 or len(others) < 2:
        # one value has no variance of its own: assume that of the other side
        several = max(these, others, key=len)
        variance = stdev(several.values()) ** 2 * (1 + 1 / len(several))
        return _interval(difference, variance, len(several) - 1)
    if these.keys() == others.keys():
        # pairs: variation that both sides share cancels
        differences = [value - others[seed] for seed, value in these.items()]
        variance = stdev(differences) ** 2 / len(differences)
        return _interval(fmean(differences), variance, len(differences) - 1)
    own_variance = stdev(these.values()) ** 2 / len(these)
    other_variance = stdev(others.values()) ** 2 / len(others)
    # Welch-Satterthwaite degrees of freedom, rounded down; 1 if neither side varies
    variance = own_variance + other_variance
    denominator = own_variance**2 / (len(these) - 1) + other_variance**2 / (len(others) - 1)
    degrees_of_freedom = variance**2 / denominator if denominator else 1.0
    return _interval(difference, variance, int(degrees_of_freedom))


def _interval(value: float, variance: float, degrees_of_freedom: int) -> tuple[float, float]:
    # beyond the table its last entry is used, which makes the interval slightly too wide
    quantile = T95[min(max(degrees_of_freedom, 1), len(T95)) - 1]
    half = quantile * math.sqrt(variance)
    return value - half, value + half
