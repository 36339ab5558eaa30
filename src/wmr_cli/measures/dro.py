"""Distributionally robust loss: the worst case over weights in a chi-squared ball.

The attacker may choose any non-negative weights w that sum to 1, with (N/2) * |w - 1/N|^2 <= rho.
The largest weighted loss and its weights follow from one sort, without iteration or tolerance.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .accuracy import Floats

RHOS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
"""The paper's radii."""

TIE_TOLERANCE = 1e-150
"""Losses within this fraction of their range count as tied with the largest.

Squares of smaller differences underflow.
"""


@dataclass(frozen=True)
class WorstCase:
    """The largest weighted loss in the ball of radius `rho`, and its weights, (N,) in input order.

    `binds` is true if the radius limits the attacker; otherwise the largest losses have all the
    weight. If several weightings are equally bad, tied images get equal weights and `is_unique`
    is false.
    """

    rho: float
    value: float
    weights: Floats
    binds: bool
    is_unique: bool
    zero_weights: int
    ess: float

    def accuracy(self, correct: ArrayLike) -> float:
        """Return the weighted fraction of correct images, (N,), under these weights."""
        hit = np.asarray(correct, dtype=bool)
        if hit.shape != self.weights.shape:
            raise ValueError(f"{hit.shape} hits do not fit {self.weights.shape} weights")
        # weights that sum to 1 up to rounding may exceed it
        return min(1.0, float(self.weights[hit].sum()))


def worst_case(losses: ArrayLike, rho: float) -> WorstCase:
    """Return the worst case of losses (N,) in the ball of one radius."""
    return next(worst_cases(losses, [rho]))


def worst_cases(losses: ArrayLike, rhos: Iterable[float]) -> Iterator[WorstCase]:
    """Yield the worst case of losses (N,) at each radius, in the order given. Sort once."""
    sorted_losses = _SortedLosses(_check_losses(losses))
    for rho in rhos:
        if not (math.isfinite(rho) and rho >= 0):
            raise ValueError(f"rho is {rho}; it is a finite number that is not negative")
        yield sorted_losses.worst_case(float(rho))


def worst_accuracy(correct: ArrayLike, rho: float) -> float:
    """Return the lowest accuracy in the ball: 1 minus the worst zero-one loss, in closed form."""
    if not (math.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho is {rho}; it is a finite number that is not negative")
    hit = np.asarray(correct, dtype=bool)
    if not hit.size:
        raise ValueError("no images were seen")
    fraction = float(hit.mean())
    # mean minus sqrt(2 rho variance), cut off where the radius no longer limits the attacker
    return max(0.0, fraction - math.sqrt(2 * rho * fraction * (1 - fraction)))


def _check_losses(losses: ArrayLike) -> Floats:
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"losses of shape {values.shape} are not one value per image")
    if not np.isfinite(values).all():
        raise ValueError(f"loss {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite")
    return values


class _SortedLosses:
    """Losses in descending order, shifted and scaled by their range: x runs from 0 to -1.

    With threshold t the best weights are proportional to (x - t)+, and the radius determines t:
    g(t) = N * sum (x-t)+^2 / (sum (x-t)+)^2 = 1 + 2 rho. `reach` holds g at every loss.
    """

    def __init__(self, losses: Floats) -> None:
        self.order = np.argsort(-losses, kind="stable")
        self.largest = float(losses.max())
        # halves: the range of finite numbers may overflow
        self.half_range = self.largest / 2 - float(losses.min()) / 2
        self.x = (losses[self.order] / 2 - self.largest / 2) / (self.half_range or 1.0)
        self.x[self.x > -TIE_TOLERANCE] = 0.0
        self.tied = int(np.count_nonzero(self.x == 0))
        self.reach = _reach(self.x)

    def worst_case(self, rho: float) -> WorstCase:
        """Return the worst case at one radius."""
        size = len(self.x)
        binds = 1 + 2 * rho <= size / self.tied
        if rho == 0:
            shares = np.full(size, 1 / size)
        elif not binds or 1 + 2 * rho == size / self.tied:
            shares = np.where(self.x == 0, 1 / self.tied, 0.0)
        else:
            shares = self._weights_on_boundary(rho)
        weights = np.empty(size)
        weights[self.order] = shares
        ess = float(self.tied)
        if binds:
            # on the boundary sum w^2 = (1 + 2 rho) / N exactly
            ess = size / (1 + 2 * rho)
        return WorstCase(
            rho=rho,
            # relative to the largest loss, so that a large offset of all losses does not cancel
            value=2 * (self.largest / 2 + self.half_range * float(shares @ self.x)),
            weights=weights,
            binds=binds,
            is_unique=binds or self.tied == 1,
            zero_weights=size - int(np.count_nonzero(shares)),
            ess=ess,
        )

    def _weights_on_boundary(self, rho: float) -> Floats:
        """Return the weights if the ball ends before the largest losses have all the weight."""
        size = len(self.x)
        # the smallest K for which a threshold at the next lower loss stays within the radius
        count = max(self.tied, int(np.searchsorted(-self.reach, -(1 + 2 * rho)))) + 1
        top = self.x[:count]
        deviation = top - top.mean()
        # K (1 + 2 rho) / N - 1, written so that it is exact for a small rho
        excess = (count - size + 2 * rho * count) / size
        scale = math.sqrt(max(0.0, excess) / float(np.mean(deviation**2)))
        shares = np.zeros(size)
        shares[:count] = np.maximum(0.0, 1 + scale * deviation)
        return np.asarray(shares / shares.sum())


def _reach(x: Floats) -> Floats:
    """Return g at the loss below the k largest, k = 1 … N, in descending order down to 1.

    It is infinite while those k are tied at the top.
    """
    # sums over gaps between neighbours, which are never negative, so that nothing cancels
    gaps = -np.diff(x)
    count = np.arange(1, len(x))
    # sum over the k largest of their height above the next loss
    above = np.cumsum(count * gaps)
    before = np.concatenate([[0.0], above[:-1]]) if len(above) else above
    squares = np.cumsum(2 * gaps * before + count * gaps**2)
    reach = np.full(len(x), np.inf)
    reach[-1] = 1.0
    np.divide(len(x) * squares, above**2, out=reach[:-1], where=above**2 > 0)
    return reach
