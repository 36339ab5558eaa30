"""Variation over training seeds, which is separate from the sampling of test images."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import msgspec

from .intervals import Estimate

T95 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
    2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450,
    2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""97.5 % quantile of Student's t for 1, 2, … degrees of freedom."""


class Spread(msgspec.Struct, frozen=True):
    """Mean and standard deviation of a value over two or more training seeds."""

    mean: float
    sd: float
    seeds: int


def mean_estimate(shares: Sequence[Estimate]) -> Estimate:
    """Return the mean of value and interval over seeds, with the smallest ESS.

    All seeds are measured on the same images, so their errors are correlated. The mean of their
    intervals is therefore never too narrow.
    """
    if len(shares) == 1:
        return shares[0]
    sizes = [share.ess for share in shares if share.ess is not None]
    return Estimate(
        fmean(share.value for share in shares),
        fmean(share.low for share in shares),
        fmean(share.high for share in shares),
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
        several = max(these, others, key=len)
        variance = stdev(several.values()) ** 2 * (1 + 1 / len(several))
        return _interval(difference, variance, len(several) - 1)
    if these.keys() == others.keys():
        # pairs: variation that both sides share cancels
        differences = [value - others[seed] for seed, value in these.items()]
        variance = stdev(differences) ** 2 / len(differences)
        return _interval(fmean(differences), variance, len(differences) - 1)
    own = stdev(these.values()) ** 2 / len(these)
    other = stdev(others.values()) ** 2 / len(others)
    # Welch-Satterthwaite degrees of freedom, rounded down; 1 if neither side varies
    split = own**2 / (len(these) - 1) + other**2 / (len(others) - 1)
    freedom = (own + other) ** 2 / split if split else 1.0
    return _interval(difference, own + other, int(freedom))


def _interval(value: float, variance: float, freedom: int) -> tuple[float, float]:
    # beyond the table its last entry is used, which makes the interval slightly too wide
    quantile = T95[min(max(freedom, 1), len(T95)) - 1]
    half = quantile * math.sqrt(variance)
    return value - half, value + half
