"""Accuracies of arrays and of stored rows, with their intervals."""

import dataclasses
import functools
import math
import pickle
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from support.typed import not_none
from wmr_cli.measures import (
    Outcome,
    RunningAccuracy,
    WeightedAccuracy,
    accuracy,
    at_alpha,
    bootstrap,
    crafted_accuracy,
    exponential_log_weights,
    is_correct,
    normalized_weights,
    plain_accuracy,
    sampled_accuracy,
    weighted_accuracy,
)

ALPHAS = (0.0, 0.5, 1.0, 2.0, 20.0, 200.0, 1000.0)

margin = st.floats(-1, 1, allow_subnormal=False)
image = st.tuples(margin, st.booleans()).map(
    lambda pair: (pair[0], pair[0] > 0 or (pair[0] == 0 and pair[1]))
)
images = st.lists(image, min_size=1, max_size=30)
alpha = st.floats(0, 1000)


def population(size: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.bool]]:
    """Margins, and hits that follow their sign."""
    margins = np.random.default_rng(seed).uniform(-1, 1, size)
    return margins, margins > 0


def state(some: list[tuple[float, bool]], alpha: float) -> WeightedAccuracy:
    margins, hits = zip(*some, strict=True)
    return WeightedAccuracy.of(exponential_log_weights(margins, alpha), hits)


def direct(
    margins: NDArray[np.float64], hits: NDArray[np.bool], alpha: float
) -> tuple[float, float, float]:
    """Value, effective sample size and variance from their definitions."""
    weights = [(-Decimal(float(alpha)) * Decimal(float(m))).exp() for m in margins]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    value = sum(share for share, hit in zip(shares, hits, strict=True) if hit)
    ess = 1 / sum(share**2 for share in shares)
    variance = sum(
        (share * (int(hit) - value)) ** 2 for share, hit in zip(shares, hits, strict=True)
    )
    return float(value), float(ess), float(variance)


def close(first: WeightedAccuracy, second: WeightedAccuracy) -> bool:
    return dataclasses.astuple(first) == pytest.approx(
        dataclasses.astuple(second), rel=1e-12, abs=1e-12
    )


def test_three_images_by_hand() -> None:
    # weights 1, 2, 4 and the second image is misclassified
    seen = WeightedAccuracy.of(np.log([1, 2, 4]), [True, False, True])
    assert seen.value == pytest.approx(5 / 7)
    assert seen.ess == pytest.approx(49 / 21)
    assert seen.variance == pytest.approx((17 * (2 / 7) ** 2 + 4 * (5 / 7) ** 2) / 49)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_streaming_over_37_chunks_and_4_ranks_is_the_direct_sum(alpha: float) -> None:
    margins, hits = population(1000)
    logs = exponential_log_weights(margins, alpha)
    chunks = [
        WeightedAccuracy.of(*part)
        for part in zip(np.array_split(logs, 37), np.array_split(hits, 37), strict=True)
    ]
    ranks = [functools.reduce(WeightedAccuracy.merge, chunks[rank::4]) for rank in range(4)]
    merged = functools.reduce(WeightedAccuracy.merge, ranks)
    assert (merged.value, merged.ess, merged.variance) == pytest.approx(
        direct(margins, hits, alpha), rel=1e-11, abs=1e-13
    )
    assert (merged.images, merged.hits) == (1000, hits.sum())


@settings(deadline=None)
@given(images, alpha, st.data())
def test_merged_parts_equal_the_whole_in_any_order(
    some: list[tuple[float, bool]], alpha: float, data: st.DataObject
) -> None:
    parts = data.draw(st.lists(st.integers(0, 4), min_size=len(some), max_size=len(some)))
    order = data.draw(st.permutations(sorted(set(parts))))
    states = [
        state([one for one, part in zip(some, parts, strict=True) if part == wanted], alpha)
        for wanted in order
    ]
    assert close(functools.reduce(WeightedAccuracy.merge, states), state(some, alpha))


@settings(deadline=None)
@given(images, images, images, alpha)
def test_merging_is_associative_and_commutative(
    first: list[tuple[float, bool]],
    second: list[tuple[float, bool]],
    third: list[tuple[float, bool]],
    alpha: float,
) -> None:
    a, b, c = (state(some, alpha) for some in (first, second, third))
    assert close(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert a.merge(b) == b.merge(a)


def test_merging_an_empty_state_changes_nothing() -> None:
    empty, seen = WeightedAccuracy.of([], []), state([(0.3, True), (-0.4, False)], 2.0)
    assert empty.merge(seen) == seen.merge(empty) == seen
    assert empty.merge(empty) == empty


@settings(deadline=None)
@given(images)
def test_alpha_zero_is_the_plain_accuracy_exactly(some: list[tuple[float, bool]]) -> None:
    hits = [hit for _, hit in some]
    assert state(some, 0.0).value == plain_accuracy(hits).value == sum(hits) / len(hits)


@settings(deadline=None)
@given(images, alpha, alpha)
def test_accuracy_never_rises_with_alpha(
    some: list[tuple[float, bool]], first: float, second: float
) -> None:
    assert state(some, max(first, second)).value <= state(some, min(first, second)).value + 1e-12


@settings(deadline=None)
@given(images, st.floats(0, 20), st.floats(0, 20))
def test_odds_fall_by_a_factor_of_at_most_exp_of_twice_the_change(
    some: list[tuple[float, bool]], first: float, second: float
) -> None:
    assume(len({hit for _, hit in some}) == 2)
    less, more = sorted((first, second))
    odds = [state(some, alpha).value / (1 - state(some, alpha).value) for alpha in (less, more)]
    assert math.exp(-2 * (more - less)) * (1 - 1e-9) <= odds[1] / odds[0] <= 1 + 1e-9


@pytest.mark.parametrize("alpha", [0.1, 1.0, 5.0])
def test_logit_of_accuracy_shifts_by_mean_weights(alpha: float) -> None:
    margins, hits = population(500, seed=1)
    weights = np.exp(-alpha * margins)
    rob = hits.mean()
    expected = (
        math.log(rob / (1 - rob)) + math.log(weights[hits].mean()) - math.log(weights[~hits].mean())
    )
    value = weighted_accuracy(-alpha * margins, hits).value
    assert math.log(value / (1 - value)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("is_correct", [True, False])
def test_all_correct_or_all_misclassified_is_exact_without_width(
    alpha: float, is_correct: bool
) -> None:
    margins = np.linspace(0.01, 0.99, 77) if is_correct else np.linspace(-0.99, -0.01, 77)
    estimate = weighted_accuracy(exponential_log_weights(margins, alpha), np.full(77, is_correct))
    assert (estimate.value, estimate.low, estimate.high) == (float(is_correct),) * 3
    assert estimate.degenerate


@pytest.mark.parametrize("smallest_is_correct", [True, False])
def test_with_alpha_to_infinity_the_smallest_margin_decides(smallest_is_correct: bool) -> None:
    margins, hits = (
        np.array([0.4, -0.2, 0.1, 0.3]),
        np.array([True, smallest_is_correct, False, True]),
    )
    assert weighted_accuracy(exponential_log_weights(margins, 1e6), hits).value == float(
        smallest_is_correct
    )


@settings(deadline=None)
@given(images, alpha)
def test_the_effective_sample_size_is_between_one_and_the_number_of_images(
    some: list[tuple[float, bool]], alpha: float
) -> None:
    assert 1 - 1e-12 <= state(some, alpha).ess <= len(some) * (1 + 1e-12)


@settings(deadline=None)
@given(images)
def test_equal_weights_count_every_image(some: list[tuple[float, bool]]) -> None:
    assert state(some, 0.0).ess == len(some)


@settings(deadline=None)
@given(images, alpha)
def test_intervals_hold_their_value_and_stay_inside_zero_and_one(
    some: list[tuple[float, bool]], alpha: float
) -> None:
    estimate = state(some, alpha).estimate()
    assert 0 <= estimate.low <= estimate.value + 1e-12
    assert estimate.value - 1e-12 <= estimate.high <= 1


def test_log_weights_of_a_thousand_do_not_overflow() -> None:
    margins, hits = population(200)
    estimate = weighted_accuracy(exponential_log_weights(margins, 1000.0), hits)
    assert all(
        math.isfinite(not_none(number))
        for number in (estimate.value, estimate.low, estimate.high, estimate.ess)
    )
    shifted = weighted_accuracy(exponential_log_weights(margins, 2.0) + 5000, hits)
    assert shifted.value == pytest.approx(
        weighted_accuracy(exponential_log_weights(margins, 2.0), hits).value, abs=1e-12
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_error_names_the_position_of_an_invalid_log_weight(bad: float) -> None:
    with pytest.raises(ValueError, match="log-weight 2"):
        WeightedAccuracy.of([0.0, -math.inf, bad, bad], [True, True, False, True])


def test_images_without_weight_count_for_nothing_by_hand() -> None:
    # weights 1, 0, 2, 0, 4; the third image is misclassified, one image without weight is correct
    logs, hits = (
        np.array([0.0, -math.inf, math.log(2), -math.inf, math.log(4)]),
        [True, True, False, False, True],
    )
    seen = WeightedAccuracy.of(logs, hits)
    assert (seen.images, seen.hits) == (3, 2)
    assert seen.value == pytest.approx(5 / 7)
    assert seen.ess == pytest.approx(49 / 21)
    assert seen.variance == pytest.approx((17 * (2 / 7) ** 2 + 4 * (5 / 7) ** 2) / 49)


@settings(deadline=None)
@given(images, st.lists(st.booleans(), max_size=10), alpha)
def test_images_without_weight_change_neither_value_nor_size_nor_interval(
    some: list[tuple[float, bool]], more: list[bool], alpha: float
) -> None:
    margins, hits = zip(*some, strict=True)
    logs = exponential_log_weights(margins, alpha)
    padded = weighted_accuracy([*logs, *[-math.inf] * len(more)], [*hits, *more])
    assert padded == weighted_accuracy(logs, hits)
    spread = WeightedAccuracy.of([-math.inf] * len(more), more).merge(
        WeightedAccuracy.of(logs, hits)
    )
    assert spread.estimate() == padded


@pytest.mark.parametrize("misclassified_have_weight", [True, False])
def test_images_without_weight_do_not_affect_exactness(misclassified_have_weight: bool) -> None:
    logs = [0.0, 1.0, -math.inf, -math.inf]
    estimate = weighted_accuracy(
        logs[::-1] if misclassified_have_weight else logs, [True, True, False, False]
    )
    value = float(not misclassified_have_weight)
    assert (estimate.value, estimate.low, estimate.high, estimate.degenerate) == (
        value,
        value,
        value,
        True,
    )


def test_accuracy_without_any_weight_is_refused() -> None:
    nothing = WeightedAccuracy.of([-math.inf, -math.inf], [True, False])
    assert nothing == WeightedAccuracy()
    for ask in (lambda: nothing.value, lambda: nothing.ess, nothing.estimate):
        with pytest.raises(ValueError, match="no image"):
            ask()
    with pytest.raises(ValueError, match="no image"):
        weighted_accuracy([-math.inf], [True])


def test_images_without_weight_have_normalized_weight_zero() -> None:
    assert normalized_weights([-math.inf, 0.0, math.log(3), -math.inf]).tolist() == pytest.approx(
        [0, 0.25, 0.75, 0]
    )


def test_resampling_leaves_out_images_without_weight() -> None:
    rng = np.random.default_rng(6)
    logs, hits = rng.normal(size=200), rng.random(200) < 0.6
    log_weights = np.where(np.arange(200) < 60, logs, -np.inf)
    (found,) = bootstrap([Outcome(hits, log_weights)], seed=1)
    assert found.value == weighted_accuracy(logs[:60], hits[:60]).value
    delta = weighted_accuracy(log_weights, hits)
    assert found.low == pytest.approx(delta.low, abs=0.05)
    assert found.high == pytest.approx(delta.high, abs=0.05)


def test_resample_without_any_weight_is_nan() -> None:
    """One image of two has all the weight, and a third of the resamples do not take it."""
    (found,) = bootstrap([Outcome(np.array([True, False]), np.array([0.0, -np.inf]))], seed=2)
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("logs", "hits"), [([0.0, 1.0], [True]), ([0.0], [True, False]), ([[0.0]], [[True]])]
)
def test_vectors_of_two_lengths_are_refused(
    logs: list[float | list[float]], hits: list[bool | list[bool]]
) -> None:
    with pytest.raises(ValueError, match="two vectors of one length"):
        WeightedAccuracy.of(logs, hits)


def test_accuracy_of_no_images_is_refused() -> None:
    with pytest.raises(ValueError, match="no image"):
        weighted_accuracy([], [])
    with pytest.raises(ValueError, match="image"):
        plain_accuracy([])


def test_weighted_accuracy_equals_that_of_images_sampled_by_weight() -> None:
    margins, hits = population(300, seed=2)
    rng, draws, trials = np.random.default_rng(3), 50, 20_000
    value = weighted_accuracy(-2 * margins, hits).value
    weights = np.exp(-2 * margins)
    met = hits[rng.choice(300, size=(trials, draws), p=weights / weights.sum())].mean(axis=1)
    deviation = math.sqrt(value * (1 - value) / draws)
    assert met.mean() == pytest.approx(value, abs=4 * deviation / math.sqrt(trials))
    assert met.std() == pytest.approx(deviation, rel=0.03)


@settings(deadline=None)
@given(st.lists(st.floats(-2000, 2000), min_size=1, max_size=20))
def test_normalized_weights_sum_to_one(logs: list[float]) -> None:
    shares = normalized_weights(logs)
    exact = [Decimal(log).exp() for log in logs]
    assert shares == pytest.approx(
        [float(weight / sum(exact)) for weight in exact], rel=1e-11, abs=1e-300
    )


# running accuracy: batches, parts and processes make no difference to the numbers

RUNNING_ALPHAS = (0.0, 1.0, 2.0, 400.0)

margin_lists = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=20)


Part = tuple[NDArray[np.bool], list[float] | NDArray[np.float64]]
"""Whether the images of one part are correct, and their margins."""


def make_part(size: int, seed: int = 0) -> tuple[NDArray[np.bool], NDArray[np.float64]]:
    margins = np.random.default_rng(seed).uniform(-1, 1, size)
    return margins > 0.1, margins


def run_over(*parts: Part, alphas: tuple[float, ...] = RUNNING_ALPHAS) -> RunningAccuracy:
    accuracy = RunningAccuracy(alphas)
    for hits, margins in parts:
        accuracy.update(hits, margins)
    return accuracy


def numbers_of(part: Part) -> NDArray[np.float64]:
    """Return the plain numbers that one process sends."""
    return run_over(part).numbers()


def assert_close(one_run: RunningAccuracy, other_run: RunningAccuracy) -> None:
    first = one_run.compute()
    second = other_run.compute()
    assert first.plain == second.plain  # whole numbers: no rounding at all
    assert first.weighted.keys() == second.weighted.keys()
    for alpha, one in first.weighted.items():
        other = second.weighted[alpha]
        assert (one.value, one.low, one.high, one.ess) == pytest.approx(
            (other.value, other.low, other.high, other.ess), rel=1e-9, abs=1e-9
        )


def test_running_accuracy_of_one_batch_is_bit_identical_to_the_function() -> None:
    correct, margin = make_part(500)
    found = run_over((correct, margin)).compute()
    assert found.plain == plain_accuracy(correct)
    assert found.weighted == {
        a: weighted_accuracy(exponential_log_weights(margin, a), correct) for a in RUNNING_ALPHAS
    }


@pytest.mark.parametrize("batches", [2, 7, 500])
def test_running_accuracy_of_many_batches_equals_that_of_one(batches: int) -> None:
    correct, margin = make_part(500)
    parts = zip(np.array_split(correct, batches), np.array_split(margin, batches), strict=True)
    assert_close(run_over(*parts), run_over((correct, margin)))


@settings(deadline=None)
@given(st.tuples(margin_lists, margin_lists, margin_lists))
def test_merging_running_accuracies_is_associative_and_commutative(
    three: tuple[list[float], list[float], list[float]],
) -> None:
    a, b, c = (run_over((np.array(some) > 0, some), alphas=(0.0, 1.5)) for some in three)
    assert_close(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert_close(a.merge(b), b.merge(a))
    assert_close(
        a.merge(b).merge(c),
        run_over(*((np.array(some) > 0, some) for some in three), alphas=(0.0, 1.5)),
    )


def test_merging_running_accuracies_leaves_both_unchanged() -> None:
    first = run_over(make_part(10))
    second = run_over(make_part(20, seed=1))
    first_numbers = first.numbers()
    second_numbers = second.numbers()
    first.merge(second)
    assert np.array_equal(first.numbers(), first_numbers)
    assert np.array_equal(second.numbers(), second_numbers)
    assert np.array_equal(RunningAccuracy(RUNNING_ALPHAS).merge(first).numbers(), first.numbers())
    assert np.array_equal(first.merge(RunningAccuracy(RUNNING_ALPHAS)).numbers(), first.numbers())


def test_running_accuracies_can_be_sent_between_processes() -> None:
    correct, margin = make_part(300, seed=2)
    parts = list(zip(np.array_split(correct, 3), np.array_split(margin, 3), strict=True))
    with ProcessPoolExecutor(2) as pool:
        sent = [
            RunningAccuracy.from_numbers(numbers, RUNNING_ALPHAS)
            for numbers in pool.map(numbers_of, parts)
        ]
    assert_close(functools.reduce(RunningAccuracy.merge, sent), run_over((correct, margin)))


def test_running_accuracy_survives_conversion_to_numbers() -> None:
    accuracy = run_over(make_part(50))
    restored = RunningAccuracy.from_numbers(accuracy.numbers(), RUNNING_ALPHAS)
    assert (
        restored.compute() == accuracy.compute() == pickle.loads(pickle.dumps(accuracy)).compute()
    )
    assert len(accuracy.numbers()) == 2 + 7 * len(RUNNING_ALPHAS)
    with pytest.raises(ValueError, match="30 numbers are not those of 1 alphas"):
        RunningAccuracy.from_numbers(accuracy.numbers(), (1.0,))


def test_running_accuracy_without_alphas_needs_no_margins() -> None:
    accuracy = RunningAccuracy()
    accuracy.update([True, False, True, True])
    assert accuracy.compute() == (plain_accuracy([True, False, True, True]), {})


def test_invalid_update_leaves_a_running_accuracy_unchanged() -> None:
    accuracy = run_over(make_part(10))
    before = accuracy.numbers()
    bad: list[tuple[ArrayLike, ArrayLike | None, str]] = [
        ([True, False], [0.1], "length"),
        ([True], None, "margins"),
        ([True], [float("nan")], "log-weight 0"),
        ([[True]], [[0.1]], "per image"),
    ]
    for hits, margins, problem in bad:
        with pytest.raises(ValueError, match=problem):
            accuracy.update(hits, margins)
    assert np.array_equal(accuracy.numbers(), before)
    with pytest.raises(ValueError, match="cannot be merged"):
        accuracy.merge(RunningAccuracy((1.0,)))
    with pytest.raises(ValueError, match="image"):
        RunningAccuracy().compute()


LABELS = np.array([0, 1, 2, 1])


def rows(
    prefix: str = "uniform",
    predictions: tuple[int, ...] = (0, 1, 2, 0),
    margins: tuple[float, ...] = (0.5, 0.25, 0.0, -0.5),
    **others: Any,
) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
    return {
        "label": LABELS,
        f"{prefix}/prediction": np.array(predictions),
        f"{prefix}/margin": np.array(margins),
        **{name.replace("__", "/"): np.array(values) for name, values in others.items()},
    }


def test_correctness_is_decided_by_the_prediction() -> None:
    # a tie that is correct, a tie that is misclassified, and margins of the opposite sign
    tied = rows(predictions=(0, 0, 2, 0), margins=(0.0, 0.0, -0.3, 0.3))
    assert is_correct(tied, "uniform").tolist() == [True, False, True, False]
    assert not_none(accuracy(tied, "uniform")).value == 0.5
    weights = [1.0, 1.0, math.exp(0.3), math.exp(-0.3)]
    assert not_none(sampled_accuracy(tied, "exp", 1.0)).value == pytest.approx(
        (weights[0] + weights[2]) / sum(weights)
    )


def test_natural_accuracy_is_that_of_the_clean_rows() -> None:
    assert not_none(accuracy(rows("clean", predictions=(0, 1, 1, 0)), "clean")).value == 0.5


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_sampled_accuracy_weights_by_exp_of_minus_alpha_times_margin(alpha: float) -> None:
    weights = [math.exp(-alpha * margin) for margin in (0.5, 0.25, 0.0, -0.5)]
    assert not_none(sampled_accuracy(rows(), "exp", alpha)).value == pytest.approx(
        sum(weights[:3]) / sum(weights)
    )


def test_sampled_accuracy_at_alpha_zero_is_the_robust_accuracy() -> None:
    assert (
        not_none(sampled_accuracy(rows(), "exp", 0.0)).value
        == not_none(accuracy(rows(), "uniform")).value
        == 0.75
    )


def test_crafted_accuracy_uses_the_rows_of_the_weighted_attack() -> None:
    both = rows() | rows("weighted@2.0", predictions=(0, 0, 0, 0), margins=(0.1, -0.1, -0.2, -0.9))
    weights = [math.exp(-2 * margin) for margin in (0.1, -0.1, -0.2, -0.9)]
    assert not_none(crafted_accuracy(both, "exp", 2)).value == pytest.approx(
        weights[0] / sum(weights)
    )
    assert crafted_accuracy(both, "exp", 1.5) is None


def test_stored_log_weights_take_precedence_over_margins() -> None:
    stored = rows() | {"uniform/log_weight@2.0": np.log([1.0, 2.0, 3.0, 4.0])}
    assert not_none(sampled_accuracy(stored, "exp", 2.0)).value == pytest.approx(0.6)
    assert not_none(sampled_accuracy(stored, "other", 2.0)).value == pytest.approx(0.6)
    crafted = rows("weighted@2.0") | {"weighted@2.0/log_weight": np.log([1.0, 2.0, 3.0, 4.0])}
    assert not_none(crafted_accuracy(crafted, "other", 2.0)).value == pytest.approx(0.6)


def test_rows_of_a_kernel_without_alpha_have_no_suffix() -> None:
    stored = rows(uniform__log_weight=np.log([4.0, 3.0, 2.0, 1.0]))
    assert not_none(sampled_accuracy(stored, "focal", None)).value == pytest.approx(0.9)
    crafted = rows("weighted") | {"weighted/log_weight": np.log([4.0, 3.0, 2.0, 1.0])}
    assert not_none(crafted_accuracy(crafted, "focal", None)).value == pytest.approx(0.9)


@pytest.mark.parametrize(("kernel", "alpha"), [("other", 2.0), ("other", None), ("exp", None)])
def test_kernel_without_stored_weights_gives_none(kernel: str, alpha: float | None) -> None:
    assert sampled_accuracy(rows(), kernel, alpha) is None


def test_missing_rows_give_none() -> None:
    assert accuracy(rows("clean"), "uniform") is None
    assert sampled_accuracy(rows("clean"), "exp", 1.0) is None
    assert crafted_accuracy(rows("clean"), "exp", 1.0) is None


@pytest.mark.parametrize(
    ("alpha", "name"), [(2, "weighted@2.0"), (0.1, "weighted@0.1"), (None, "weighted")]
)
def test_row_names_contain_alpha(alpha: float | None, name: str) -> None:
    assert at_alpha("weighted", alpha) == name
