"""A_rob and A_sa of images that come batch by batch, in one process or in many."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .accuracy import WeightedAccuracy
from .intervals import Estimate, wilson
from .weights import Floats, exponential_log_weights


class Accuracies(NamedTuple):
    """`plain`, where every image counts the same, and `weighted` at each alpha."""

    plain: Estimate
    weighted: dict[float, Estimate]


class RunningAccuracy:
    """Plain accuracy, and accuracy weighted by exp(-alpha * margin) at each alpha, of all images seen so far.

    It holds seven numbers per alpha and two besides, whatever the number of images. Batches may come in any order and any
    size, and parts may be merged in any order: the result is the same up to rounding.
    """

    def __init__(self, alphas: Iterable[float] = ()) -> None:
        self._states = {float(alpha): WeightedAccuracy() for alpha in alphas}
        self._images = self._hits = 0

    def update(self, correct: ArrayLike, margins: ArrayLike | None = None) -> None:
        """Add images by whether each is right, (N,), and by its margin, (N,), which only weights ask for."""
        right = np.asarray(correct, dtype=bool)
        if right.ndim != 1:
            raise ValueError(f"hits of shape {right.shape} are not one per image")
        if margins is None and self._states:
            raise ValueError("margins are needed to weigh images by")
        added = {
            alpha: state.update(exponential_log_weights([] if margins is None else margins, alpha), right)
            for alpha, state in self._states.items()
        }
        self._states, self._images, self._hits = added, self._images + right.size, self._hits + int(right.sum())

    def merge(self, other: "RunningAccuracy") -> "RunningAccuracy":
        """All images of both; neither is changed."""
        if self._states.keys() != other._states.keys():
            raise ValueError(f"alphas {sorted(self._states)} and {sorted(other._states)} cannot be merged")
        merged = RunningAccuracy()
        merged._states = {alpha: state.merge(other._states[alpha]) for alpha, state in self._states.items()}
        merged._images, merged._hits = self._images + other._images, self._hits + other._hits
        return merged

    def compute(self) -> Accuracies:
        """The accuracies of all images seen, each with its interval."""
        weighted = {alpha: state.estimate() for alpha, state in self._states.items()}
        return Accuracies(wilson(self._hits, self._images), weighted)

    def numbers(self) -> Floats:
        """Everything it holds as one vector, for `all_gather` and the like."""
        held = [number for state in self._states.values() for number in dataclasses.astuple(state)]
        return np.array([self._images, self._hits, *held], dtype=np.float64)

    @classmethod
    def from_numbers(cls, numbers: ArrayLike, alphas: Iterable[float] = ()) -> "RunningAccuracy":
        """What another process sent, for the alphas that both have, in the same order."""
        made, vector = cls(alphas), np.asarray(numbers, dtype=np.float64)
        if vector.shape != made.numbers().shape:
            raise ValueError(f"{vector.size} numbers are not those of {len(made._states)} alphas")
        made._images, made._hits = int(vector[0]), int(vector[1])
        for alpha, held in zip(made._states, vector[2:].reshape(-1, 7).tolist(), strict=True):
            peak, total, right, total_squared, right_squared, images, hits = held
            made._states[alpha] = WeightedAccuracy(peak, total, right, total_squared, right_squared, int(images), int(hits))
        return made
