"""Bootstrap intervals: of one accuracy, and of the difference of two on the same images.

Models measured on the same images share easy and hard ones. Resampling both together keeps this
correlation, so the interval of a difference is often much narrower than two separate intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from .accuracy import FittedParameter, Floats, Outcome
from .intervals import Estimate

RESAMPLES = 2000
BLOCK_COUNTS = 2**20
"""Poisson counts held at a time, so that memory does not grow with images times resamples."""
MIN_IMAGES = 6
"""Fewest images that can make a difference significant: 2^-5 < 5 %, as in a two-sided sign test."""
COLUMNS_PER_PRODUCT = 128
"""Columns of one matrix product, two per outcome."""
MAX_KEPT_BYTES = 2**27
"""Counts are kept between calls up to this size."""


def bootstrap(
    outcomes: Sequence[Outcome], seed: int = 0, resamples: int = RESAMPLES
) -> list[Estimate]:
    """Return each accuracy with the 95 % percentile interval of a Poisson bootstrap.

    A resample takes every image a Poisson(1) number of times and normalises the weights again;
    log-weights stay, except that a fitted parameter is fitted again by a Newton step. All outcomes
    see the same resamples, so each result is independent of the others in the list.
    """
    sizes = {len(outcome.correct) for outcome in outcomes}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"outcomes of {sorted(sizes)} images are not of one set of images")
    (size,) = sizes
    terms = [_ratio_terms(outcome) for outcome in outcomes]
    accuracies = np.full((len(outcomes), resamples), np.nan)
    first = 0
    for counts in _draw_counts(size, seed, resamples):
        last = first + len(counts)
        # counts are exact in uint8 and float64; the products need float64
        exact_counts = counts.astype(np.float64)
        for outcome, accuracy, (correct, weights) in zip(outcomes, accuracies, terms, strict=True):
            total = exact_counts @ weights
            hits = exact_counts @ correct
            if outcome.fit is not None:
                columns = _fit_columns(outcome.fit, correct, weights)
                hits, total = _apply_fit(hits, total, exact_counts @ columns)
            # a resample without any weight has no accuracy and stays NaN
            np.divide(hits, total, out=accuracy[first:last], where=total > 0)
        first = last
    ends = np.nanquantile(accuracies, (0.025, 0.975), axis=1).T
    return [
        msgspec.structs.replace(outcome.estimate(), low=float(low), high=float(high))
        for outcome, (low, high) in zip(outcomes, ends, strict=True)
    ]


class Difference(msgspec.Struct, frozen=True):
    """One accuracy minus another, with its 95 % interval.

    `effective_images` is the effective number of images that make the difference.
    """

    value: float
    low: float
    high: float
    effective_images: float

    @property
    def rests_on_few(self) -> bool:
        """Whether too few images make the difference for resampling to be meaningful."""
        return self.effective_images < MIN_IMAGES

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval excludes 0 and enough images make the difference."""
        return not (self.low <= 0 <= self.high or self.rests_on_few)


@dataclass(frozen=True)
class Resampled:
    """An accuracy, the contribution of each image, (N,), and its value in every resample, (B,).

    Resamples without any weight are NaN.
    """

    value: float
    contributions: Floats
    resampled_values: Floats

    def minus(self, other: "Resampled") -> Difference:
        """Return the difference with its percentile interval. Both need the same resamples."""
        changes = np.abs(self.contributions - other.contributions)
        if changes.any():
            # squares of the smallest weights would underflow
            changes /= changes.max()
        squares = float(changes @ changes)
        low, high = np.nanquantile(self.resampled_values - other.resampled_values, (0.025, 0.975))
        value = self.value - other.value
        effective_images = 0.0
        if squares:
            # Kish's effective number of the images whose contributions differ
            effective_images = round(float(changes.sum()) ** 2 / squares, 6)
        # if few images have all the weight, all resamples may be on one side of the value
        return Difference(
            value,
            low=min(float(low), value),
            high=max(float(high), value),
            effective_images=effective_images,
        )


def mean_of(members: Sequence[Resampled]) -> Resampled:
    """Return the mean of several accuracies, e.g. over training seeds, resample by resample."""
    count = len(members)
    if count == 1:
        return members[0]
    return Resampled(
        sum(member.value for member in members) / count,
        np.asarray(sum(member.contributions for member in members) / count),
        np.asarray(sum(member.resampled_values for member in members) / count),
    )


class Resamples:
    """Poisson(1) counts of N images in B resamples, shared by all accuracies of these images.

    The draws equal those of `bootstrap` with the same seed.
    """

    def __init__(self, images: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        if images < 1:
            raise ValueError("resampling needs at least one of its images")
        self.images = images
        self.seed = seed
        self.resamples = resamples
        self._kept: list[NDArray[np.uint8]] | None = None

    def of(self, outcomes: Sequence[Outcome]) -> list[Resampled]:
        """Compute each accuracy in every resample; the weights are normalised in each one."""
        if any(len(outcome.correct) != self.images for outcome in outcomes):
            raise ValueError(f"an outcome is not of the {self.images} images that are resampled")
        made: list[Resampled] = []
        # one product for many outcomes reads the counts once; its width bounds the memory
        for first in range(0, len(outcomes), COLUMNS_PER_PRODUCT // 2):
            made += self._resample(outcomes[first : first + COLUMNS_PER_PRODUCT // 2])
        return made

    def _resample(self, outcomes: Sequence[Outcome]) -> list[Resampled]:
        terms = [_ratio_terms(outcome) for outcome in outcomes]
        columns = np.stack([column for pair in terms for column in pair], axis=1)
        totals = self._sum_columns(columns)
        correct = totals[:, 0::2].T
        weights = totals[:, 1::2].T
        for number, (outcome, pair) in enumerate(zip(outcomes, terms, strict=True)):
            if outcome.fit is not None:
                fit_sums = self._sum_columns(_fit_columns(outcome.fit, *pair))
                correct[number], weights[number] = _apply_fit(
                    correct[number], weights[number], fit_sums
                )
        accuracies = np.full(correct.shape, np.nan)
        np.divide(correct, weights, out=accuracies, where=weights > 0)
        return [
            Resampled(outcome.estimate().value, hits / weight.sum(), accuracy)
            for outcome, (hits, weight), accuracy in zip(outcomes, terms, accuracies, strict=True)
        ]

    def _sum_columns(self, columns: Floats) -> Floats:
        """Return the sum of each column (N, K) in every resample, (B, K)."""
        return np.concatenate([counts.astype(np.float64) @ columns for counts in self._counts()])

    def _counts(self) -> Iterator[NDArray[np.uint8]]:
        """Yield blocks of counts. They are kept if they are small enough."""
        if self._kept is not None:
            yield from self._kept
            return
        keeps = self.images * self.resamples <= MAX_KEPT_BYTES
        blocks = []
        for counts in _draw_counts(self.images, self.seed, self.resamples):
            if keeps:
                blocks.append(counts)
            yield counts
        # only complete draws are kept: a consumer may stop early
        if keeps:
            self._kept = blocks


def _draw_counts(images: int, seed: int, resamples: int) -> Iterator[NDArray[np.uint8]]:
    """Yield how often each image is taken, some resamples at a time, (B', N)."""
    rng = np.random.default_rng(seed)
    height = max(1, BLOCK_COUNTS // images)
    for first in range(0, resamples, height):
        counts = rng.poisson(1.0, (min(height, resamples - first), images))
        # a Poisson(1) number above 255 does not occur
        yield counts.astype(np.uint8)


def _ratio_terms(outcome: Outcome) -> tuple[Floats, Floats]:
    """Return each image's term of numerator and denominator, (N,) and (N,)."""
    if outcome.log_weights is None:
        weights = np.ones(len(outcome.correct))
    else:
        weights = np.exp(outcome.log_weights - outcome.log_weights.max())
    return weights * outcome.correct, weights


def _fit_columns(fit: FittedParameter, correct: Floats, weights: Floats) -> Floats:
    """Return the columns (N, 4) whose sums `_apply_fit` needs."""
    return np.stack(
        [fit.scores, fit.curvatures, fit.slopes * correct, fit.slopes * weights], axis=1
    )


def _apply_fit(hits: Floats, total: Floats, sums: Floats) -> tuple[Floats, Floats]:
    """Return numerators and denominators (B,) after fitting the parameter in every resample.

    The parameter moves by one Newton step, and the weights to first order.
    """
    scores, curvatures, hit_slopes, slopes = sums.T
    step = np.zeros_like(scores)
    # an empty resample has no curvature
    np.divide(-scores, curvatures, out=step, where=curvatures > 0)
    moved_total = np.maximum(total + step * slopes, 0.0)
    # to first order, a few images could leave [0, 1]
    return np.clip(hits + step * hit_slopes, 0.0, moved_total), moved_total
