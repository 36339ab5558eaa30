"""Plain and weighted accuracy with intervals, from rows: A_nat and A_rob, A_sa and A_tr.

Rows are arrays with one entry per image: `label`, and `prediction`, `margin`, … under `clean/`,
`uniform/` (the unweighted attack) and `weighted@2.0/` (the weighted attack of A_tr). Log-weights
of the paper's kernel follow from the margins, at any alpha; other kernels store theirs as rows.
`worst_rows` combines the rows of several attacks, and DRO reads its losses from them.

Weights stay logarithms until they are normalised. `WeightedAccuracy` is a state of seven numbers
that can be updated, merged and sent between ranks; `RunningAccuracy` collects batches.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .intervals import Estimate, logit_delta, wilson

Floats = NDArray[np.float64]
Rows = Mapping[str, NDArray[Any]]
MARGIN_KERNEL = "exp"
"""The kernel whose log-weights follow from the stored margins, at any alpha.

Records store it by this name, and reports must read them without loading any component.
"""


def exponential_log_weights(margins: ArrayLike, alpha: float) -> Floats:
    """Return the logarithm of the paper's kernel exp(-alpha * margin)."""
    # float64: rounded float32 margins would tie images that differ
    return -alpha * np.asarray(margins, dtype=np.float64)


def normalized_weights(log_weights: ArrayLike) -> Floats:
    """Return weights that sum to 1."""
    logs = np.asarray(log_weights, dtype=np.float64)
    # the largest weight becomes 1, so that exp cannot overflow
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class WeightedAccuracy:
    """Sums over images with non-zero weight. The order of merging matters only to rounding.

    With log-weight a_i, and c_i = 1 where image i is correct: peak = max a,
    total = sum e^(a-peak), correct = sum c e^(a-peak), and the same with squared weights.
    """

    # scaling by exp(-peak) keeps the sums finite for any log-weights
    peak: float = -math.inf
    total: float = 0.0
    correct: float = 0.0
    total_squared: float = 0.0
    correct_squared: float = 0.0
    images: int = 0
    hits: int = 0

    @classmethod
    def of(cls, log_weights: ArrayLike, correct: ArrayLike) -> "WeightedAccuracy":
        """Return the state of one set of images, (N,) and (N,)."""
        logs = np.asarray(log_weights, dtype=np.float64)
        hit = np.asarray(correct, dtype=bool)
        if logs.shape != hit.shape or logs.ndim != 1:
            raise ValueError(
                f"log-weights {logs.shape} and hits {hit.shape} must be two vectors of one length"
            )
        if np.isnan(logs).any() or (logs == np.inf).any():
            position = int(np.flatnonzero(~(logs < np.inf))[0])
            raise ValueError(f"log-weight {position} is {logs[position]}, not finite or -inf")
        # an image of weight 0 is never sampled; -inf minus a peak of -inf would be NaN
        has_weight = logs > -np.inf
        hit = hit[has_weight]
        logs = logs[has_weight]
        if not len(logs):
            return cls()
        peak = float(logs.max())
        weights = np.exp(logs - peak)
        squared = weights * weights
        return cls(
            peak=peak,
            total=float(weights.sum()),
            correct=float(weights[hit].sum()),
            total_squared=float(squared.sum()),
            correct_squared=float(squared[hit].sum()),
            images=len(logs),
            hits=int(hit.sum()),
        )

    def update(self, log_weights: ArrayLike, correct: ArrayLike) -> "WeightedAccuracy":
        """Return the state with one more set of images, (N,) and (N,)."""
        return self.merge(WeightedAccuracy.of(log_weights, correct))

    def merge(self, other: "WeightedAccuracy") -> "WeightedAccuracy":
        """Return the state of both sets of images together."""
        peak = max(self.peak, other.peak)
        if peak == -math.inf:
            return self
        # rescale both sides to the common peak; one of the factors is exactly 1
        own_scale = math.exp(self.peak - peak)
        other_scale = math.exp(other.peak - peak)
        return WeightedAccuracy(
            peak=peak,
            total=self.total * own_scale + other.total * other_scale,
            correct=self.correct * own_scale + other.correct * other_scale,
            total_squared=self.total_squared * own_scale**2 + other.total_squared * other_scale**2,
            correct_squared=self.correct_squared * own_scale**2
            + other.correct_squared * other_scale**2,
            images=self.images + other.images,
            hits=self.hits + other.hits,
        )

    @property
    def value(self) -> float:
        """Weighted fraction of correct images."""
        if self.images == 0:
            raise ValueError("no image has a weight above 0")
        # exactly 0 or 1 if all images agree: the division could round to a value beside it
        if self.hits in (0, self.images):
            return float(self.hits > 0)
        return self.correct / self.total

    @property
    def ess(self) -> float:
        """Effective sample size (Kish): the variance is that of so many equally weighted images."""
        if self.images == 0:
            raise ValueError("no image has a weight above 0")
        return self.total**2 / self.total_squared

    @property
    def variance(self) -> float:
        """Variance of the self-normalised ratio, by the delta method."""
        value = self.value
        wrong_squared = self.total_squared - self.correct_squared
        # a difference of nearly equal sums may round below 0
        scaled = max(0.0, self.correct_squared * (1 - value) ** 2 + wrong_squared * value**2)
        return scaled / self.total**2

    def estimate(self) -> Estimate:
        """Return value, logit-delta interval and effective sample size."""
        if self.hits in (0, self.images):
            return Estimate(self.value, self.value, self.value, self.ess)
        return logit_delta(self.value, self.variance, self.ess)


@dataclass(frozen=True)
class FittedParameter:
    """How log-weights depend on a parameter that minimises a mean loss over the same images.

    All arrays are (N,), at the fitted value: derivatives of each log-weight, and first and second
    derivatives of each loss. The sum of `scores` is 0, and that of `curvatures` is positive.
    """

    slopes: Floats
    scores: Floats
    curvatures: Floats


@dataclass(frozen=True)
class Outcome:
    """Which images are correct, (N,), and the log-weights of the attacker's sampling, (N,).

    Without log-weights all images have the same weight. With `fit`, intervals include the
    uncertainty of a parameter of the log-weights.
    """

    correct: NDArray[np.bool_]
    log_weights: Floats | None = None
    fit: FittedParameter | None = None

    def among(self, chosen: NDArray[np.bool_]) -> "Outcome":
        """Return the outcome of the images in a mask (N,); a fitted parameter is taken as given."""
        if self.log_weights is None:
            return Outcome(self.correct[chosen])
        return Outcome(self.correct[chosen], self.log_weights[chosen])

    def estimate(self) -> Estimate:
        """Return the accuracy: Wilson's interval if plain, the logit-delta interval if weighted."""
        if self.log_weights is None:
            return plain_accuracy(self.correct)
        given = weighted_accuracy(self.log_weights, self.correct)
        # with all images correct, or none, the accuracy is the same for any weights
        if self.fit is None or given.degenerate:
            return given
        variance = float((self._influences(self.log_weights, self.fit) ** 2).sum())
        return logit_delta(given.value, variance, given.ess or 0.0)

    def _influences(self, log_weights: Floats, fit: FittedParameter) -> Floats:
        """Return how much each image moves the accuracy, (N,), also through the fit.

        This is the joint delta method: the parameter's own influence is -score / sum(curvatures),
        and the accuracy depends on the parameter by the weighted covariance with `slopes`.
        """
        weights = normalized_weights(log_weights)
        own = weights * (self.correct - weights[self.correct].sum())
        return np.asarray(own - (fit.slopes @ own) * fit.scores / fit.curvatures.sum())


def weighted_accuracy(log_weights: ArrayLike, correct: ArrayLike) -> Estimate:
    """Return A_sa or A_tr, the accuracy on images sampled by weight, with its interval."""
    return WeightedAccuracy.of(log_weights, correct).estimate()


def plain_accuracy(correct: ArrayLike) -> Estimate:
    """Return A_nat or A_rob, the accuracy on equally weighted images, with its interval."""
    hit = np.asarray(correct, dtype=bool)
    return wilson(int(hit.sum()), hit.size)


class Accuracies(NamedTuple):
    """Plain accuracy, and weighted accuracy at each alpha."""

    plain: Estimate
    weighted: dict[float, Estimate]


class RunningAccuracy:
    """Plain accuracy, and accuracy weighted by exp(-alpha * margin), of all images seen so far.

    It holds seven numbers per alpha and two more, for any number of images. Batches may have any
    size and order, and parts may be merged in any order: the results agree up to rounding.
    """

    def __init__(self, alphas: Iterable[float] = ()) -> None:
        self._states = {float(alpha): WeightedAccuracy() for alpha in alphas}
        self._images = 0
        self._hits = 0

    def update(self, correct: ArrayLike, margins: ArrayLike | None = None) -> None:
        """Add images: whether each is correct, (N,), and its margin, (N,), if there are alphas."""
        hit = np.asarray(correct, dtype=bool)
        if hit.ndim != 1:
            raise ValueError(f"hits of shape {hit.shape} are not one per image")
        if self._states:
            if margins is None:
                raise ValueError("margins are required: the weights depend on them")
            # all states are computed before any is replaced: bad margins must leave no trace
            self._states = {
                alpha: state.update(exponential_log_weights(margins, alpha), hit)
                for alpha, state in self._states.items()
            }
        self._images += hit.size
        self._hits += int(hit.sum())

    def merge(self, other: "RunningAccuracy") -> "RunningAccuracy":
        """Return the state of all images of both; neither is changed."""
        if self._states.keys() != other._states.keys():
            raise ValueError(
                f"alphas {sorted(self._states)} and {sorted(other._states)} cannot be merged"
            )
        merged = RunningAccuracy()
        merged._states = {
            alpha: state.merge(other._states[alpha]) for alpha, state in self._states.items()
        }
        merged._images = self._images + other._images
        merged._hits = self._hits + other._hits
        return merged

    def compute(self) -> Accuracies:
        """Return the accuracies of all images seen, with their intervals."""
        weighted = {alpha: state.estimate() for alpha, state in self._states.items()}
        return Accuracies(wilson(self._hits, self._images), weighted)

    def numbers(self) -> Floats:
        """Return the state as one vector, for `all_gather` and similar collectives."""
        held = [number for state in self._states.values() for number in dataclasses.astuple(state)]
        # float64 holds counts exactly up to 2^53
        return np.array([self._images, self._hits, *held], dtype=np.float64)

    @classmethod
    def from_numbers(cls, numbers: ArrayLike, alphas: Iterable[float] = ()) -> "RunningAccuracy":
        """Return the state that `numbers` gave on another rank, for the same alphas in order."""
        made = cls(alphas)
        vector = np.asarray(numbers, dtype=np.float64)
        if vector.shape != made.numbers().shape:
            raise ValueError(f"{vector.size} numbers are not those of {len(made._states)} alphas")
        made._images = int(vector[0])
        made._hits = int(vector[1])
        state_size = len(dataclasses.fields(WeightedAccuracy))
        states = vector[2:].reshape(-1, state_size).tolist()
        for alpha, state in zip(made._states, states, strict=True):
            peak, total, correct, total_squared, correct_squared, images, hits = state
            made._states[alpha] = WeightedAccuracy(
                peak=peak,
                total=total,
                correct=correct,
                total_squared=total_squared,
                correct_squared=correct_squared,
                images=int(images),
                hits=int(hits),
            )
        return made


def at_alpha(name: str, alpha: float | None) -> str:
    """Return the row name for one alpha, e.g. `weighted@2.0`; the plain name without alpha."""
    if alpha is None:
        return name
    # repr of a float is part of the file format: 2 and 2.0 are the same row
    return f"{name}@{float(alpha)!r}"


def is_correct(rows: Rows, prefix: str) -> NDArray[np.bool_]:
    """Return which images are classified correctly, (N,)."""
    return np.asarray(rows[f"{prefix}/prediction"] == rows["label"])


def plain_outcome(rows: Rows, prefix: str) -> Outcome | None:
    """Return the outcome for A_nat (`clean`) or A_rob (`uniform`); None if not measured."""
    if f"{prefix}/prediction" not in rows:
        return None
    return Outcome(is_correct(rows, prefix))


def sampled_outcome(rows: Rows, kernel: str, alpha: float | None) -> Outcome | None:
    """Return the outcome for A_sa: images of the unweighted attack, sampled by weight."""
    return _weighted(rows, "uniform", at_alpha("uniform/log_weight", alpha), kernel, alpha)


def crafted_outcome(rows: Rows, kernel: str, alpha: float | None) -> Outcome | None:
    """Return the outcome for A_tr: images of the weighted attack, sampled by weight."""
    prefix = at_alpha("weighted", alpha)
    return _weighted(rows, prefix, f"{prefix}/log_weight", kernel, alpha)


def accuracy(rows: Rows, prefix: str) -> Estimate | None:
    """Return A_nat (`clean`) or A_rob (`uniform`); None if not measured."""
    return _estimate(plain_outcome(rows, prefix))


def sampled_accuracy(rows: Rows, kernel: str, alpha: float | None) -> Estimate | None:
    """Return A_sa with its interval; None if its weights are not known."""
    return _estimate(sampled_outcome(rows, kernel, alpha))


def crafted_accuracy(rows: Rows, kernel: str, alpha: float | None) -> Estimate | None:
    """Return A_tr with its interval; None if its attack was not run."""
    return _estimate(crafted_outcome(rows, kernel, alpha))


def attacked_losses(rows: Rows, name: str) -> Floats | None:
    """Return the losses (N,) under the unweighted attack: `ce`, `margin` or `zero-one`.

    The margin loss is minus the logit margin. The result is None if the loss was not measured:
    attacks that stop early leave only predictions, and so only the zero-one loss.
    """
    if name == "zero-one":
        if "uniform/prediction" not in rows:
            return None
        return (~is_correct(rows, "uniform")).astype(np.float64)
    row, sign = {"ce": ("uniform/loss", 1.0), "margin": ("uniform/logit_margin", -1.0)}[name]
    if row not in rows:
        return None
    return sign * np.asarray(rows[row], dtype=np.float64)


def _estimate(outcome: Outcome | None) -> Estimate | None:
    if outcome is None:
        return None
    return outcome.estimate()


def _weighted(
    rows: Rows, prefix: str, stored: str, kernel: str, alpha: float | None
) -> Outcome | None:
    logs: Floats
    # attacks that stop early have no margins, and weights of their images mean nothing
    if f"{prefix}/margin" not in rows:
        return None
    # stored weights first: kernels may depend on more than the margin
    if stored in rows:
        logs = np.asarray(rows[stored], dtype=np.float64)
    elif kernel == MARGIN_KERNEL and alpha is not None:
        logs = exponential_log_weights(rows[f"{prefix}/margin"], alpha)
    else:
        return None
    return Outcome(is_correct(rows, prefix), logs)


def worst_rows(attacks: Sequence[Rows]) -> dict[str, NDArray[Any]]:
    """Return the worst case of each image over several attacks on the same images.

    A successful attack takes precedence over an unsuccessful one, then the lower logit margin
    decides. If an attack has no margins, the result has only predictions.
    """
    first = attacks[0]
    for other in attacks[1:]:
        for name in ("index", "label"):
            if not np.array_equal(first[name], other[name]):
                raise ValueError("the attacks were run on different images")
    # clean rows and verified bounds do not depend on the attack
    worst = {
        name: values
        for name, values in first.items()
        if "/" not in name or name.startswith(("clean/", "certify/"))
    }
    predictions = [name for name in first if name.endswith("/prediction")]
    for prefix in dict.fromkeys(name.rpartition("/")[0] for name in predictions):
        if prefix != "clean" and all(f"{prefix}/prediction" in rows for rows in attacks):
            worst |= _pick_worst(attacks, prefix)
    return worst


def _pick_worst(attacks: Sequence[Rows], prefix: str) -> dict[str, NDArray[Any]]:
    hits = np.stack([is_correct(rows, prefix) for rows in attacks])
    # rows that all attacks have: those of one image come from one attack, and stay consistent
    names = [
        name
        for name in attacks[0]
        if name.startswith(f"{prefix}/") and all(name in rows for rows in attacks)
    ]
    if f"{prefix}/logit_margin" in names:
        margins = np.stack([rows[f"{prefix}/logit_margin"] for rows in attacks]).astype(np.float64)
        # the last key of lexsort is the primary one: misclassified first, then the lowest margin
        chosen = np.lexsort((margins, hits), axis=0)[0]
    else:
        names = [f"{prefix}/prediction"]
        chosen = hits.argmin(axis=0)
    images = np.arange(len(chosen))
    return {name: np.stack([rows[name] for rows in attacks])[chosen, images] for name in names}
