"""Intervals by resampling: what the numbers would have been on other test sets drawn from the same source."""

from collections.abc import Sequence

import msgspec
import numpy as np

from .accuracy import Outcome
from .intervals import Estimate
from .weights import Floats

RESAMPLES = 2000
BLOCK = 2**20
"""Counts held at a time: memory does not grow with images times resamples."""


def bootstrap(outcomes: Sequence[Outcome], seed: int = 0, resamples: int = RESAMPLES) -> list[Estimate]:
    """Each outcome's share with the 95 % percentile interval of a Poisson bootstrap.

    A resample takes every image a Poisson(1) number of times and weighs it anew among those taken; an image's log-weight
    is its own and stays. Outcomes of the same images see the same resamples, so what is asked beside one does not change it.
    """
    sizes = {len(outcome.correct) for outcome in outcomes}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"outcomes of {sorted(sizes)} images are not of one set of images")
    (size,) = sizes
    sums = [summands(outcome) for outcome in outcomes]
    shares = np.full((len(outcomes), resamples), np.nan)
    rng, height = np.random.default_rng(seed), max(1, BLOCK // size)
    for first in range(0, resamples, height):
        counts = rng.poisson(1.0, (min(height, resamples - first), size)).astype(np.float64)
        for share, (right, weights) in zip(shares, sums, strict=True):
            total = counts @ weights
            # a resample that took no image with any weight has no share
            np.divide(counts @ right, total, out=share[first : first + len(counts)], where=total > 0)
    ends = np.nanquantile(shares, (0.025, 0.975), axis=1).T
    return [
        msgspec.structs.replace(outcome.estimate(), low=float(low), high=float(high))
        for outcome, (low, high) in zip(outcomes, ends, strict=True)
    ]


def summands(outcome: Outcome) -> tuple[Floats, Floats]:
    """Each image's part of numerator and denominator, (N,) and (N,)."""
    if outcome.log_weights is None:
        weights = np.ones(len(outcome.correct))
    else:
        weights = np.exp(outcome.log_weights - outcome.log_weights.max())
    return weights * outcome.correct, weights
