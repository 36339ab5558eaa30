"""Two shares on the same images: what is left of their difference when the luck of the draw is shared.

Networks measured on the same images meet the same easy and hard ones. Resampling both together keeps that, so the interval
of a difference is often much narrower than two intervals side by side suggest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from .accuracy import Outcome
from .bootstrap import BLOCK, RESAMPLES, summands
from .weights import Floats

FEWEST = 6
"""Of fewer images than this even a unanimous verdict could be chance: six heads in a row are the first with p < 5 %."""
COLUMNS, HELD = 128, 2**27
"""Sums made at a time, and counts (bytes) that are kept between them."""


class Difference(msgspec.Struct, frozen=True):
    """One share minus another with its 95 % interval, and the effective number of `images` that make the difference."""

    value: float
    low: float
    high: float
    images: float

    @property
    def rests_on_few(self) -> bool:
        """Whether so few images make the difference that resampling them says nothing."""
        return self.images < FEWEST

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval leaves out 0, and enough images stand behind it."""
        return not (self.low <= 0 <= self.high or self.rests_on_few)


@dataclass(frozen=True)
class Resampled:
    """A share, what each image adds to it, (N,), and what it was in every resample, (B,); NaN where nothing was taken."""

    value: float
    parts: Floats
    shares: Floats

    def minus(self, other: "Resampled") -> Difference:
        """The difference with its percentile interval. Both must come from the same resamples."""
        parts, shares = np.abs(self.parts - other.parts), self.shares - other.shares
        if parts.any():
            parts /= parts.max()  # squares of the smallest weights would vanish
        squares = float(parts @ parts)
        low, high = np.nanquantile(shares, (0.025, 0.975))
        value = self.value - other.value
        # where few images carry all the weight the resamples may all lie to one side of the value
        low, high = min(float(low), value), max(float(high), value)
        return Difference(value, low, high, round(float(parts.sum()) ** 2 / squares, 6) if squares else 0.0)


def mean_of(members: Sequence[Resampled]) -> Resampled:
    """The mean of several shares, over training seeds for example, resample by resample."""
    count = len(members)
    if count == 1:
        return members[0]
    return Resampled(
        sum(member.value for member in members) / count,
        np.asarray(sum(member.parts for member in members) / count),
        np.asarray(sum(member.shares for member in members) / count),
    )


class Resamples:
    """How often each of N images is taken in each of B resamples: Poisson(1), drawn once for every share of these images.

    The draws are those of `bootstrap` with the same seed.
    """

    def __init__(self, images: int, seed: int = 0, resamples: int = RESAMPLES) -> None:
        if images < 1:
            raise ValueError("there are no images to resample")
        self.images, self.seed, self.resamples = images, seed, resamples
        self._held: list[NDArray[np.uint8]] | None = None

    def of(self, outcomes: Sequence[Outcome]) -> list[Resampled]:
        """Each outcome in every resample: weights are taken along and the share is computed anew among those taken."""
        if any(len(outcome.correct) != self.images for outcome in outcomes):
            raise ValueError(f"an outcome is not of the {self.images} images that are resampled")
        made: list[Resampled] = []
        for first in range(0, len(outcomes), COLUMNS // 2):
            made += self._some(outcomes[first : first + COLUMNS // 2])
        return made

    def _some(self, outcomes: Sequence[Outcome]) -> list[Resampled]:
        sums = [summands(outcome) for outcome in outcomes]
        columns = np.stack([column for pair in sums for column in pair], axis=1)
        totals = np.concatenate([counts.astype(np.float64) @ columns for counts in self._counts()])
        right, weights = totals[:, 0::2].T, totals[:, 1::2].T
        shares = np.full(right.shape, np.nan)
        np.divide(right, weights, out=shares, where=weights > 0)
        return [
            Resampled(outcome.estimate().value, hits / weight.sum(), share)
            for outcome, (hits, weight), share in zip(outcomes, sums, shares, strict=True)
        ]

    def _counts(self) -> Iterator[NDArray[np.uint8]]:
        """Blocks of counts, some resamples each; kept where they are few enough."""
        if self._held is not None:
            yield from self._held
            return
        keeps = self.images * self.resamples <= HELD
        rng, height, held = np.random.default_rng(self.seed), max(1, BLOCK // self.images), []
        for first in range(0, self.resamples, height):
            counts = rng.poisson(1.0, (min(height, self.resamples - first), self.images)).astype(np.uint8)
            if keeps:
                held.append(counts)
            yield counts
        if keeps:
            self._held = held
