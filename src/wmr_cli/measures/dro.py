"""The worst case over all attackers of bounded preference: weights in a chi-squared ball around equal ones.

The attacker may choose any weights w that are not negative and sum to one, as long as (N/2) * |w - 1/N|^2 <= rho. The
largest weighted loss and the weights that reach it follow from one sort: no iteration, no tolerance, no bracket.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .weights import Floats

RHOS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
"""The paper's radii."""

TIED = 1e-150
"""Losses this near to the largest, as a share of their range, count as equal to it: squares of less underflow."""


@dataclass(frozen=True)
class WorstCase:
    """The largest weighted loss in the ball of radius `rho`, and the weights that reach it, (N,) in the order given.

    `binds` says that the radius limits the attacker; beyond it all weight lies on the largest losses already. Where
    several weightings are equally bad the tied images share alike, and `is_unique` is false.
    """

    rho: float
    value: float
    weights: Floats
    binds: bool
    is_unique: bool
    zero_weights: int
    ess: float

    def accuracy(self, correct: ArrayLike) -> float:
        """The weighted share of right images, (N,), under these weights."""
        right = np.asarray(correct, dtype=bool)
        if right.shape != self.weights.shape:
            raise ValueError(f"{right.shape} hits do not fit {self.weights.shape} weights")
        return min(1.0, float(self.weights[right].sum()))


def worst_case(losses: ArrayLike, rho: float) -> WorstCase:
    """The worst case of losses (N,) in the ball of one radius."""
    return next(worst_cases(losses, [rho]))


def worst_cases(losses: ArrayLike, rhos: Iterable[float]) -> Iterator[WorstCase]:
    """The worst case of losses (N,) at each radius, in the order given. Sorts once."""
    ranked = _Ranked(_checked(losses))
    for rho in rhos:
        if not (math.isfinite(rho) and rho >= 0):
            raise ValueError(f"rho is {rho}; it is a finite number that is not negative")
        yield ranked.worst_case(float(rho))


def worst_accuracy(correct: ArrayLike, rho: float) -> float:
    """The least accuracy in the ball: one minus the worst case of the zero-one loss, in closed form."""
    if not (math.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho is {rho}; it is a finite number that is not negative")
    right = np.asarray(correct, dtype=bool)
    if not right.size:
        raise ValueError("no images were seen")
    share = float(right.mean())
    return max(0.0, share - math.sqrt(2 * rho * share * (1 - share)))


def _checked(losses: ArrayLike) -> Floats:
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"losses of shape {values.shape} are not one value per image")
    if not np.isfinite(values).all():
        raise ValueError(f"loss {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite")
    return values


class _Ranked:
    """Losses from the largest down, centred on it and divided by their range: x runs from 0 to -1.

    With threshold t the best weights are proportional to (x - t)+, and the radius fixes t through
    g(t) = N * sum (x-t)+^2 / (sum (x-t)+)^2 = 1 + 2 rho. `reach` holds g at every loss. Its sums grow by gaps between
    neighbours, which are never negative, so nothing cancels.
    """

    def __init__(self, losses: Floats) -> None:
        self.order = np.argsort(-losses, kind="stable")
        self.largest = float(losses.max())
        # halves, as the range of finite numbers may not be finite
        self.half_range = self.largest / 2 - float(losses.min()) / 2
        self.x = (losses[self.order] / 2 - self.largest / 2) / (self.half_range or 1.0)
        self.x[self.x > -TIED] = 0.0
        self.tied = int(np.count_nonzero(self.x == 0))
        self.reach = _reach(self.x)

    def worst_case(self, rho: float) -> WorstCase:
        size = len(self.x)
        binds = 1 + 2 * rho <= size / self.tied
        if rho == 0:
            shares = np.full(size, 1 / size)
        elif not binds or 1 + 2 * rho == size / self.tied:
            shares = np.where(self.x == 0, 1 / self.tied, 0.0)
        else:
            shares = self._inside(rho)
        weights = np.empty(size)
        weights[self.order] = shares
        return WorstCase(
            rho=rho,
            value=2 * (self.largest / 2 + self.half_range * float(shares @ self.x)),
            weights=weights,
            binds=binds,
            is_unique=binds or self.tied == 1,
            zero_weights=size - int(np.count_nonzero(shares)),
            ess=size / (1 + 2 * rho) if binds else float(self.tied),
        )

    def _inside(self, rho: float) -> Floats:
        """Weights where the ball's boundary is met before all weight lies on the largest losses."""
        size = len(self.x)
        # the fewest images K whose threshold, set at the next loss below them, keeps within the radius
        count = max(self.tied, int(np.searchsorted(-self.reach, -(1 + 2 * rho)))) + 1
        top = self.x[:count]
        deviation = top - top.mean()
        excess = (count - size + 2 * rho * count) / size  # K (1 + 2 rho) / N - 1, exact for a small rho
        slope = math.sqrt(max(0.0, excess) / float(np.mean(deviation**2)))
        shares = np.zeros(size)
        shares[:count] = np.maximum(0.0, 1 + slope * deviation)
        return np.asarray(shares / shares.sum())


def _reach(x: Floats) -> Floats:
    """g at the loss below the k largest, k = 1 … N, falling to 1; infinite while those k are tied at the top."""
    gaps, count = -np.diff(x), np.arange(1, len(x))
    above = np.cumsum(count * gaps)  # sum over the k largest of their height above the next
    before = np.concatenate([[0.0], above[:-1]]) if len(above) else above
    squares = np.cumsum(2 * gaps * before + count * gaps**2)
    reach = np.full(len(x), np.inf)
    reach[-1] = 1.0
    np.divide(len(x) * squares, above**2, out=reach[:-1], where=above**2 > 0)
    return reach
