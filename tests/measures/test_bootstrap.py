"""The Poisson bootstrap: seeded, bounded in memory, and in agreement with the formulas."""

import tracemalloc

import numpy as np
import pytest

from support.typed import not_none
from wmr_cli.measures import Outcome, bootstrap, exponential_log_weights


def outcome(size: int = 2000, alpha: float | None = None, seed: int = 0) -> Outcome:
    margins = np.tanh(np.random.default_rng(seed).normal(0.3, 0.7, size))
    return Outcome(margins > 0, None if alpha is None else exponential_log_weights(margins, alpha))


@pytest.mark.parametrize("alpha", [None, 0.0, 1.0, 3.0])
def test_intervals_are_close_to_those_of_the_formulas(alpha: float | None) -> None:
    some = outcome(alpha=alpha)
    (resampled,), formula = bootstrap([some]), some.estimate()
    assert (resampled.value, resampled.ess) == (formula.value, formula.ess)
    assert (resampled.low, resampled.high) == pytest.approx((formula.low, formula.high), abs=0.004)
    assert (resampled.low, resampled.high) != (formula.low, formula.high)


def test_the_seed_decides() -> None:
    assert bootstrap([outcome()], seed=1) == bootstrap([outcome()], seed=1)
    assert bootstrap([outcome()], seed=1) != bootstrap([outcome()], seed=2)


def test_result_is_independent_of_other_outcomes() -> None:
    first, second = outcome(alpha=2.0), outcome(seed=1)
    assert bootstrap([first, second]) == [*bootstrap([first]), *bootstrap([second])]


def test_weights_are_relative_and_do_not_overflow() -> None:
    some = outcome(alpha=2.0)
    shifted = Outcome(some.correct, not_none(some.log_weights) + 5000)
    (plain,), (moved,) = bootstrap([some]), bootstrap([shifted])
    assert (moved.low, moved.high) == pytest.approx((plain.low, plain.high), abs=1e-9)


@pytest.mark.parametrize("is_correct", [True, False])
@pytest.mark.parametrize("alpha", [None, 2.0])
def test_all_correct_or_all_misclassified_has_no_width(
    is_correct: bool, alpha: float | None
) -> None:
    some = outcome(size=50, alpha=alpha)
    (estimate,) = bootstrap([Outcome(np.full(50, is_correct), some.log_weights)])
    assert (estimate.value, estimate.low, estimate.high) == (float(is_correct),) * 3
    assert estimate.degenerate


def test_resample_without_images_is_ignored() -> None:
    (estimate,) = bootstrap([Outcome(np.array([True]))])
    assert (estimate.low, estimate.high) == (1.0, 1.0)


def test_memory_is_bounded() -> None:
    some = [outcome(size=10_000), outcome(size=10_000, alpha=2.0)]
    tracemalloc.start()
    bootstrap(some)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6  # all counts at once would be 160 MB


@pytest.mark.parametrize("sizes", [(), (3, 4), (0,)])
def test_outcomes_must_be_of_one_set_of_images(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one set of images"):
        bootstrap([Outcome(np.ones(size, dtype=bool)) for size in sizes])
