"""The exact lowest logit margin of a small ReLU network in an ε-ball, by integer programming.

A ReLU is linear on each side of 0, and a binary variable selects the side. The lowest margin is
then the optimum of a mixed-integer linear program per wrong class. HiGHS solves it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

Array = NDArray[np.float64]
Layers = Sequence[tuple[Array, Array]]
"""Weight and bias of each linear layer; ReLU is between them."""


@dataclass(frozen=True, eq=False)
class ExactMargin:
    """The lowest margin in an ε-ball: a proved lower bound, and the margin of an image there."""

    bound: float
    attained: float


def find_exact_margin(layers: Layers, image: Array, label: int, eps: float) -> ExactMargin:
    """Return the lowest margin of the label in the L∞ ball of an image (D,) in [0, 1]."""
    box = (np.maximum(image - eps, 0), np.minimum(image + eps, 1))
    program, last = _encode(layers[:-1], box)
    weight, bias = layers[-1]
    targets = np.delete(np.arange(len(bias)), label)
    differences = weight[label] - weight[targets]
    offsets = bias[label] - bias[targets]
    bounds, _ = last.concretize(differences, offsets)
    attained = np.inf
    # the nearest class first, so that its optimum rules out others
    for target in np.argsort(bounds):
        if bounds[target] < attained:
            found, optimum = program.minimize(differences[target])
            bounds[target] = optimum + offsets[target]
            attained = min(attained, margin_at(layers, np.clip(found, *box), label))
    return ExactMargin(min(bounds.min(), attained), attained)


def margin_at(layers: Layers, image: Array, label: int) -> float:
    """Return the label's logit minus the largest other one, in float64."""
    values = image
    for weight, bias in layers[:-1]:
        values = np.maximum(weight @ values + bias, 0)
    logits = layers[-1][0] @ values + layers[-1][1]
    return float(logits[label] - np.delete(logits, label).max())


@dataclass(frozen=True, eq=False)
class _LinearBounds:
    """Bounds of units that are linear functions of the image, in a box of images."""

    box: tuple[Array, Array]
    low: tuple[Array, Array]
    high: tuple[Array, Array]

    def map_linear(self, weight: Array, bias: Array) -> "_LinearBounds":
        """Return the bounds after a linear layer."""
        positive = np.maximum(weight, 0)
        negative = np.minimum(weight, 0)
        low, high = (
            (
                positive @ own[0] + negative @ other[0],
                positive @ own[1] + negative @ other[1] + bias,
            )
            for own, other in ((self.low, self.high), (self.high, self.low))
        )
        return _LinearBounds(self.box, low, high)

    def concretize(self, weight: Array, bias: Array) -> tuple[Array, Array]:
        """Return the range of each unit after a linear layer."""
        after = self.map_linear(weight, bias)
        center = (self.box[0] + self.box[1]) / 2
        radius = (self.box[1] - self.box[0]) / 2
        low = after.low[0] @ center - np.abs(after.low[0]) @ radius + after.low[1]
        high = after.high[0] @ center + np.abs(after.high[0]) @ radius + after.high[1]
        return low, high

    def relu(self, low: Array, high: Array) -> "_LinearBounds":
        """Return the bounds after a ReLU of units in these ranges."""
        # above: the chord; below: 0 or the identity, whichever leaves less area
        chord = np.where(low >= 0, 1, np.maximum(high, 0) / np.maximum(high - low, 1e-12))
        shift = np.where(low >= 0, 0, -chord * low)
        below = np.where(low >= 0, 1, np.where(high <= 0, 0, (high > -low).astype(float)))
        return _LinearBounds(
            self.box,
            (below[:, None] * self.low[0], below * self.low[1]),
            (chord[:, None] * self.high[0], chord * self.high[1] + shift),
        )


@dataclass(frozen=True, eq=False)
class _Program:
    """Constraints of the hidden layers on a vector of pixels, units and binary variables."""

    constraints: LinearConstraint
    variables: Bounds
    is_integer: Array
    pixels: int
    units: slice

    def minimize(self, weight: Array) -> tuple[Array, float]:
        """Minimise a linear function of the last units: an image, and a proved lower bound."""
        objective = np.zeros(len(self.is_integer))
        objective[self.units] = weight
        result = milp(
            objective,
            integrality=self.is_integer,
            bounds=self.variables,
            constraints=self.constraints,
            options={"mip_rel_gap": 0.0},
        )
        if result.status != 0:
            raise RuntimeError(f"HiGHS: {result.message}")
        # a linear program without binary variables has no bound besides its optimum
        bound = result.fun if result.mip_dual_bound is None else result.mip_dual_bound
        return result.x[: self.pixels], float(bound)


def _encode(layers: Layers, box: tuple[Array, Array]) -> tuple[_Program, _LinearBounds]:
    """Return the program of linear layers with ReLU, and linear bounds of the last units."""
    pixels = len(box[0])
    identity = (np.eye(pixels), np.zeros(pixels))
    bounds = _LinearBounds(box, identity, identity)
    size = pixels + 2 * sum(len(bias) for _, bias in layers)
    lows = [box[0]]
    highs = [box[1]]
    is_integer = np.zeros(size)
    rows: list[tuple[Array, float, float]] = []
    inputs = slice(0, pixels)
    for weight, bias in layers:
        low, high = bounds.concretize(weight, bias)
        units = slice(sum(map(len, lows)), sum(map(len, lows)) + len(bias))
        # each unit has a switch behind all units of its layer: 1 where it is not clipped
        is_integer[units.stop : units.stop + len(bias)] = 1
        lows += [np.maximum(low, 0), (low >= 0).astype(float)]
        highs += [np.maximum(high, 0), (high > 0).astype(float)]
        for unit in range(len(bias)):
            linear = np.zeros(size)
            linear[inputs] = -weight[unit]
            linear[units.start + unit] = 1
            switch = np.zeros(size)
            switch[units.stop + unit] = 1
            value = np.zeros(size)
            value[units.start + unit] = 1
            rows += _encode_relu(linear, value, switch, bias[unit], (low[unit], high[unit]))
        bounds = bounds.map_linear(weight, bias).relu(low, high)
        inputs = units
    matrix, at_least, at_most = (np.array(part) for part in zip(*rows, strict=True))
    program = _Program(
        LinearConstraint(matrix, at_least, at_most),
        Bounds(np.concatenate(lows), np.concatenate(highs)),
        is_integer,
        pixels,
        inputs,
    )
    return program, bounds


def _encode_relu(
    linear: Array, value: Array, switch: Array, bias: float, ends: tuple[float, float]
) -> Iterator[tuple[Array, float, float]]:
    """Yield the rows that make a value the ReLU of a linear function with a range."""
    low = min(ends[0], 0.0)
    high = max(ends[1], 0.0)
    # value >= linear function; equal to it if the switch is 1; 0 if the switch is 0
    yield linear, bias, np.inf
    yield linear - low * switch, -np.inf, bias - low
    yield value - high * switch, -np.inf, 0.0
