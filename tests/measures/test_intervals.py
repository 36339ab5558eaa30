"""Intervals against published values, closed forms and a simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.typed import not_none
from wmr_cli.measures import (
    Estimate,
    Outcome,
    bootstrap,
    exponential_log_weights,
    logit_delta,
    seeds_interval,
    spread,
    wilson,
)

Z = 1.959963984540054  # the 97.5 % point of the normal distribution


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_values_that_newcombe_published(
    hits: int, total: int, low: float, high: float
) -> None:
    estimate = wilson(hits, total)
    assert estimate.value == hits / total
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


def test_an_estimate_prints_as_percentages_with_its_interval() -> None:
    estimate = Estimate(0.61749999999999, 0.5, 0.7251, ess=40.0)
    assert str(estimate) == f"{estimate}" == "61.8 % [50.0, 72.5]"
    assert f"{estimate:.2f}" == "61.75 % [50.00, 72.51]"
    assert f"{estimate:.0f}" == "62 % [50, 73]"
    assert f"{estimate:>22}" == "   61.8 % [50.0, 72.5]"
    assert repr(estimate) == "Estimate(value=0.61749999999999, low=0.5, high=0.7251, ess=40.0)"
    with pytest.raises(ValueError, match="'d'"):
        f"{estimate:d}"


@settings(deadline=None)
@given(st.integers(1, 10_000), st.data())
def test_wilson_interval_inverts_the_score_test(total: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, total))
    estimate = wilson(hits, total)
    for end in (estimate.low, estimate.high):
        assert (hits / total - end) ** 2 == pytest.approx(
            Z**2 * end * (1 - end) / total, rel=1e-6, abs=1e-12
        )


@pytest.mark.parametrize("total", [1, 7, 550, 10_000, 123_457])
def test_wilson_closes_on_zero_and_one_exactly(total: int) -> None:
    none, every = wilson(0, total), wilson(total, total)
    assert (none.value, none.low, every.value, every.high) == (0.0, 0.0, 1.0, 1.0)
    assert none.high == pytest.approx(Z**2 / (total + Z**2))
    assert every.low == pytest.approx(total / (total + Z**2))
    assert not none.degenerate
    assert not every.degenerate


@pytest.mark.parametrize(("value", "deviation"), [(0.5, 0.05), (0.03, 0.02), (0.999, 0.004)])
def test_logit_delta_is_symmetric_on_the_logit_scale(value: float, deviation: float) -> None:
    estimate = logit_delta(value, deviation**2, ess=90.0)
    half = Z * deviation / (value * (1 - value))
    odds = value / (1 - value)
    assert estimate.low == pytest.approx(
        odds * math.exp(-half) / (1 + odds * math.exp(-half)), rel=1e-12
    )
    assert estimate.high == pytest.approx(
        odds * math.exp(half) / (1 + odds * math.exp(half)), rel=1e-12
    )
    assert (estimate.value, estimate.ess) == (value, 90.0)


def test_logit_delta_by_hand() -> None:
    estimate = logit_delta(0.5, 0.0025, ess=100.0)
    assert (estimate.low, estimate.high) == pytest.approx((0.4032377, 0.5967623), abs=1e-7)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_image_with_all_the_weight_gives_the_unit_interval(value: float) -> None:
    estimate = logit_delta(value, 0.0, ess=1.0)
    assert (estimate.low, estimate.high) == (0.0, 1.0)
    assert not estimate.degenerate


def test_huge_variance_gives_the_unit_interval() -> None:
    estimate = logit_delta(0.5, 1e6, ess=1.0)
    assert (estimate.low, estimate.high) == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize(("num_intervals", "z"), [(1, Z), (10, 2.8070338), (100, 3.4807564)])
def test_more_joint_intervals_are_wider(num_intervals: int, z: float) -> None:
    estimate = wilson(40, 100, num_intervals)
    for end in (estimate.low, estimate.high):
        assert (0.4 - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / 100, rel=1e-6)


def test_joint_interval_of_ten_classes_covers_the_worst() -> None:
    """Ten equal classes: the worst one is chance, which a plain interval ignores."""
    rng = np.random.default_rng(5)
    worst = rng.binomial(200, 0.6, size=(4000, 10)).min(axis=1)
    plain, wide = (
        [wilson(hits, 200, num_intervals).high >= 0.6 for hits in worst.tolist()]
        for num_intervals in (1, 10)
    )
    assert np.mean(plain) < 0.85
    assert np.mean(wide) > 0.95


def test_intervals_cover_the_true_value_in_95_percent() -> None:
    """1,000 test sets of 1,000 images from a population whose weighted accuracy is known."""
    rng = np.random.default_rng(20_201_012)
    margins = np.tanh(rng.normal(0.2, 0.8, 1_000_000))
    samples = margins[rng.integers(len(margins), size=(1000, 1000))]
    for alpha in (1.0, 2.0, 4.0):
        weights = np.exp(-alpha * margins)
        truth = weights[margins > 0].sum() / weights.sum()
        tests = [Outcome(some > 0, exponential_log_weights(some, alpha)) for some in samples]
        for estimates in ([test.estimate() for test in tests], bootstrap(tests)):
            assert 0.93 <= np.mean([one.low <= truth <= one.high for one in estimates]) <= 0.97


THESE = {0: 0.52, 1: 0.49, 2: 0.55}


def test_single_seed_has_no_spread() -> None:
    assert spread([0.5]) is None
    assert spread([]) is None
    found = not_none(spread([0.5, 0.6]))
    assert (found.mean, found.seeds) == (0.55, 2)
    assert found.sd == pytest.approx(0.0707106781)


def test_equal_seeds_are_compared_in_pairs() -> None:
    others = {2: 0.50, 0: 0.50, 1: 0.45}
    pairs = stats.ttest_rel([0.52, 0.49, 0.55], [0.50, 0.45, 0.50]).confidence_interval()
    assert seeds_interval(THESE, others) == pytest.approx((pairs.low, pairs.high), abs=1e-6)


def test_different_seeds_are_compared_as_two_samples() -> None:
    others = {3: 0.50, 4: 0.45, 5: 0.42, 6: 0.47}
    welch = stats.ttest_ind(
        list(THESE.values()), list(others.values()), equal_var=False
    ).confidence_interval()
    low, high = not_none(seeds_interval(THESE, others))
    assert low <= welch.low < welch.high <= high  # degrees of freedom are rounded down
    assert (low, high) == pytest.approx((welch.low, welch.high), abs=0.01)


def test_two_seeds_give_a_wide_interval() -> None:
    low, high = not_none(seeds_interval({0: 0.60, 1: 0.61}, {2: 0.55, 3: 0.58}))
    assert low < 0 < high


@pytest.mark.parametrize(("these", "others"), [(THESE, {}), ({0: 0.5}, {0: 0.4})])
def test_interval_needs_a_second_seed(these: dict[int, float], others: dict[int, float]) -> None:
    assert seeds_interval(these, others) is None
    assert seeds_interval(others, these) is None


def test_single_seed_gets_the_variance_of_the_other_side() -> None:
    low, high = not_none(seeds_interval(THESE, {7: 0.3}))
    # Student's t of two degrees of freedom; the standard deviation of THESE is 0.03
    half = 4.302653 * 0.03 * (4 / 3) ** 0.5
    assert (low, high) == pytest.approx((0.22 - half, 0.22 + half))
    assert seeds_interval({7: 0.3}, THESE) == pytest.approx((-high, -low))


def test_seeds_without_variance_give_an_interval_without_width() -> None:
    assert seeds_interval({0: 0.5, 1: 0.5}, {0: 0.25, 1: 0.25}) == (0.25, 0.25)
    assert seeds_interval({0: 0.5, 1: 0.5}, {2: 0.25, 3: 0.25}) == (0.25, 0.25)


def test_many_seeds_use_the_last_quantile_of_the_table() -> None:
    these, others = (
        {seed: value + 0.01 * (seed % 2) for seed in range(40)} for value in (0.5, 0.4)
    )
    assert seeds_interval(these, others) == pytest.approx((0.1, 0.1))
    shifted = {seed + 40: value for seed, value in others.items()}
    low, high = not_none(seeds_interval(these, shifted))
    assert 0.09 < low < 0.1 < high < 0.11
