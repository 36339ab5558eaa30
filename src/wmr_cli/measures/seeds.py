"""The spread over seeds of training: another thing than the draw of test images, and told apart from it."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import msgspec

from .intervals import Estimate

T95 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
"""Student's t at 97.5 %, by degrees of freedom from 1 on; beyond these the last one is kept, which errs on the safe side."""


class Spread(msgspec.Struct, frozen=True):
    """Mean and standard deviation of one number over `seeds` seeds, two at least."""

    mean: float
    sd: float
    seeds: int


def mean_estimate(shares: Sequence[Estimate]) -> Estimate:
    """One share of several seeds: the mean of value and ends, and the least ESS.

    All seeds met the same images, so their errors are alike, and the mean of the intervals is never too narrow.
    """
    if len(shares) == 1:
        return shares[0]
    value, low, high = (fmean(getattr(share, part) for share in shares) for part in ("value", "low", "high"))
    return Estimate(value, low, high, min((share.ess for share in shares if share.ess is not None), default=None))


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of values of several seeds; none of one."""
    return Spread(fmean(values), stdev(values), len(values)) if len(values) > 1 else None


def seeds_interval(these: Mapping[int, float], others: Mapping[int, float]) -> tuple[float, float] | None:
    """The 95 % interval of the difference between two means over seeds, these minus the others; values are given by seed.

    It asks for other seeds of training on the same test images. Where both were trained with the same seeds they are compared
    seed by seed (Student), else as two samples (Welch). Of two seeds each it is very wide, and rightly so. A side of one seed is
    taken to vary as much as the other; where both have one there is no interval.
    """
    if not these or not others or len(these) + len(others) < 3:
        return None
    difference = fmean(these.values()) - fmean(others.values())
    if len(these) < 2 or len(others) < 2:
        several = max(these, others, key=len)
        return _around(difference, stdev(several.values()) ** 2 * (1 + 1 / len(several)), len(several) - 1)
    if these.keys() == others.keys():
        differences = [value - others[seed] for seed, value in these.items()]
        return _around(fmean(differences), stdev(differences) ** 2 / len(differences), len(differences) - 1)
    ours, theirs = (stdev(side.values()) ** 2 / len(side) for side in (these, others))
    split = ours**2 / (len(these) - 1) + theirs**2 / (len(others) - 1)
    freedom = (ours + theirs) ** 2 / split if split else 1.0
    return _around(difference, ours + theirs, int(freedom))


def _around(value: float, variance: float, freedom: int) -> tuple[float, float]:
    half = T95[min(max(freedom, 1), len(T95)) - 1] * math.sqrt(variance)
    return value - half, value + half
