"""The Poisson bootstrap of one accuracy, and of differences of two on the same images."""

import importlib
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.typed import not_none
from wmr_cli.measures import (
    Difference,
    Outcome,
    Resamples,
    bootstrap,
    exponential_log_weights,
    mean_of,
)


def outcome(size: int = 2000, alpha: float | None = None, seed: int = 0) -> Outcome:
    margins = np.tanh(np.random.default_rng(seed).normal(0.3, 0.7, size))
    return Outcome(margins > 0, None if alpha is None else exponential_log_weights(margins, alpha))


@pytest.mark.parametrize("alpha", [None, 0.0, 1.0, 3.0])
def test_intervals_are_close_to_those_of_the_formulas(alpha: float | None) -> None:
    some = outcome(alpha=alpha)
    (resampled,) = bootstrap([some])
    formula = some.estimate()
    assert (resampled.value, resampled.ess) == (formula.value, formula.ess)
    assert (resampled.low, resampled.high) == pytest.approx((formula.low, formula.high), abs=0.004)
    assert (resampled.low, resampled.high) != (formula.low, formula.high)


def test_the_seed_decides() -> None:
    assert bootstrap([outcome()], seed=1) == bootstrap([outcome()], seed=1)
    assert bootstrap([outcome()], seed=1) != bootstrap([outcome()], seed=2)


def test_result_is_independent_of_other_outcomes() -> None:
    first = outcome(alpha=2.0)
    second = outcome(seed=1)
    assert bootstrap([first, second]) == [*bootstrap([first]), *bootstrap([second])]


def test_weights_are_relative_and_do_not_overflow() -> None:
    some = outcome(alpha=2.0)
    shifted = Outcome(some.correct, not_none(some.log_weights) + 5000)
    (plain,) = bootstrap([some])
    (moved,) = bootstrap([shifted])
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


# differences of two accuracies on the same images

SIZE = 1000


def paired_outcome(
    skill: float = 0.0, alpha: float | None = None, size: int = SIZE, seed: int = 0
) -> Outcome:
    """Return a model on images that are hard or easy for all models."""
    difficulty = np.random.default_rng(99).normal(0.3, 1.0, size)
    margins = np.tanh(difficulty + skill + np.random.default_rng(seed).normal(0, 0.2, size))
    return Outcome(margins > 0, None if alpha is None else exponential_log_weights(margins, alpha))


def difference(this: Outcome, other: Outcome, **options: Any) -> Difference:
    this_resampled, other_resampled = Resamples(len(this.correct), **options).of([this, other])
    return this_resampled.minus(other_resampled)


def influence(one: Outcome) -> NDArray[np.float64]:
    """Return the influence of each image on an accuracy: the delta method."""
    weights = np.ones(len(one.correct))
    if one.log_weights is not None:
        weights = np.exp(one.log_weights - one.log_weights.max())
    result: NDArray[np.float64] = weights * (one.correct - one.estimate().value) / weights.sum()
    return result


@pytest.mark.parametrize("alpha", [None, 1.0, 3.0])
def test_the_interval_of_a_difference_agrees_with_theory(alpha: float | None) -> None:
    this = paired_outcome(0.2, alpha)
    other = paired_outcome(0.0, alpha, seed=1)
    found = difference(this, other)
    error = np.sqrt(np.sum((influence(this) - influence(other)) ** 2))
    assert found.value == this.estimate().value - other.estimate().value
    assert (found.low, found.high) == pytest.approx(
        (found.value - 1.96 * error, found.value + 1.96 * error), abs=0.3 * error
    )
    assert found.is_distinguishable


def test_the_smallest_weights_are_counted_too() -> None:
    """Their squares underflow to 0."""
    logs = np.array([0.0] + [-500.0] * 20)
    correct = np.array([False] + [True] * 20)
    misclassified = np.zeros(21, dtype=bool)
    assert difference(Outcome(correct, logs), Outcome(misclassified, logs)).effective_images == 20


def test_paired_interval_is_narrower_than_two_intervals() -> None:
    this = paired_outcome(0.15)
    other = paired_outcome(0.0, seed=1)
    (this_interval,) = bootstrap([this])
    (other_interval,) = bootstrap([other])
    assert this_interval.low < other_interval.high
    assert difference(this, other).is_distinguishable


def test_resamples_equal_those_of_bootstrap() -> None:
    for one in (paired_outcome(), paired_outcome(alpha=2.0)):
        (estimate,) = bootstrap([one], seed=3)
        (resampled,) = Resamples(SIZE, seed=3).of([one])
        assert np.quantile(resampled.resampled_values, (0.025, 0.975)) == pytest.approx(
            (estimate.low, estimate.high), abs=1e-12
        )


def test_difference_of_equal_outcomes_is_zero() -> None:
    found = difference(paired_outcome(alpha=2.0), paired_outcome(alpha=2.0))
    assert (found.value, found.low, found.high, found.effective_images) == (0, 0, 0, 0)
    assert not found.is_distinguishable


def test_the_same_value_on_other_images_has_an_interval_around_0() -> None:
    correct = np.arange(100) < 50
    found = difference(Outcome(correct), Outcome(~correct))
    assert found.value == 0
    assert found.low < 0 < found.high
    assert found.effective_images == 100
    assert not found.is_distinguishable


def test_single_image_is_never_significant() -> None:
    found = difference(Outcome(np.array([True])), Outcome(np.array([False])))
    assert (found.value, found.low, found.high, found.effective_images) == (1, 1, 1, 1)
    assert found.rests_on_few
    assert not found.is_distinguishable


@pytest.mark.parametrize(("images", "is_enough"), [(5, False), (6, True)])
def test_minimum_number_of_images_is_that_of_a_sign_test(images: int, is_enough: bool) -> None:
    other = np.zeros(500, dtype=bool)
    this = other.copy()
    this[:images] = True
    found = difference(Outcome(this), Outcome(other))
    assert found.effective_images == images
    assert found.is_distinguishable == is_enough


def test_weight_on_one_image_rests_on_few_images() -> None:
    margins = np.linspace(-1, 1, SIZE)
    logs = exponential_log_weights(margins, 1e6)
    this = margins > 0
    other = this.copy()
    this[0] = True  # the image that has all the weight
    found = difference(Outcome(this, logs), Outcome(other, logs))
    assert found.value == pytest.approx(1)
    assert found.rests_on_few
    assert not found.is_distinguishable
    assert np.isfinite([found.low, found.high]).all()


def test_the_mean_over_seeds_is_taken_resample_by_resample() -> None:
    members = Resamples(SIZE).of([paired_outcome(seed=seed) for seed in range(3)])
    whole = mean_of(members)
    assert whole.value == pytest.approx(np.mean([member.value for member in members]))
    assert whole.contributions.sum() == pytest.approx(whole.value)
    assert whole.resampled_values[7] == pytest.approx(
        np.mean([member.resampled_values[7] for member in members])
    )
    assert mean_of(members[:1]).minus(members[0]).effective_images == 0


def test_a_difference_depends_on_the_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    this = paired_outcome(0.1, 2.0)
    other = paired_outcome(0.0, 2.0, seed=1)
    first = difference(this, other)
    assert difference(this, other) == first
    assert difference(this, other, seed=1) != first
    among_others = Resamples(SIZE).of(
        [paired_outcome(seed=seed) for seed in range(100)] + [this, other]
    )
    assert among_others[-2].minus(among_others[-1]).low == pytest.approx(first.low, abs=1e-12)
    # too many images to keep the counts
    module = importlib.import_module("wmr_cli.measures.bootstrap")
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 0)
    again = Resamples(SIZE)
    assert again.of([this])[0].minus(again.of([other])[0]).low == pytest.approx(
        first.low, abs=1e-12
    )


def test_paired_intervals_have_their_nominal_coverage() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        difficulty = rng.normal(0.3, 1.0, 300)
        # two equally good models, so that the true difference is 0
        this = np.tanh(difficulty + rng.normal(0, 0.5, 300))
        other = np.tanh(difficulty + rng.normal(0, 0.5, 300))
        found = difference(
            Outcome(this > 0, exponential_log_weights(this, 1.0)),
            Outcome(other > 0, exponential_log_weights(other, 1.0)),
            resamples=300,
        )
        covered += found.low <= 0 <= found.high
    assert 0.91 <= covered / 300 <= 0.985


@pytest.mark.parametrize("sizes", [(3, 4), (0,)])
def test_outcomes_must_be_of_the_images_that_are_resampled(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="images"):
        Resamples(sizes[-1]).of([Outcome(np.ones(size, dtype=bool)) for size in sizes])
