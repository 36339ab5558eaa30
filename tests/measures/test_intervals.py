"""Intervals against published values, closed forms and a simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmr_cli.measures import Outcome, bootstrap, exponential_log_weights, logit_delta, wilson

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


@settings(deadline=None)
@given(st.integers(1, 10_000), st.data())
def test_the_ends_of_wilson_are_where_the_score_test_just_rejects(
    total: int, data: st.DataObject
) -> None:
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
def test_where_one_image_has_all_the_weight_anything_may_be_true(value: float) -> None:
    estimate = logit_delta(value, 0.0, ess=1.0)
    assert (estimate.low, estimate.high) == (0.0, 1.0)
    assert not estimate.degenerate


def test_a_huge_variance_fills_the_unit_interval_without_overflow() -> None:
    estimate = logit_delta(0.5, 1e6, ess=1.0)
    assert (estimate.low, estimate.high) == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize(("looks", "z"), [(1, Z), (10, 2.8070338), (100, 3.4807564)])
def test_many_looks_need_wider_intervals(looks: int, z: float) -> None:
    estimate = wilson(40, 100, looks)
    for end in (estimate.low, estimate.high):
        assert (0.4 - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / 100, rel=1e-6)


def test_the_worst_of_ten_classes_is_held_by_the_interval_of_ten_looks() -> None:
    """Ten classes of equal truth: the worst one is mere bad luck, which a plain interval does not allow for."""
    rng = np.random.default_rng(5)
    worst = rng.binomial(200, 0.6, size=(4000, 10)).min(axis=1)
    plain, wide = (
        [wilson(hits, 200, looks).high >= 0.6 for hits in worst.tolist()] for looks in (1, 10)
    )
    assert np.mean(plain) < 0.85
    assert np.mean(wide) > 0.95


def test_about_95_of_100_intervals_hold_the_truth() -> None:
    """1,000 test sets of 1,000 images from a population whose weighted accuracy is known."""
    rng = np.random.default_rng(20_201_012)
    margins = np.tanh(rng.normal(0.2, 0.8, 1_000_000))
    drawn = margins[rng.integers(len(margins), size=(1000, 1000))]
    for alpha in (1.0, 2.0, 4.0):
        weights = np.exp(-alpha * margins)
        truth = weights[margins > 0].sum() / weights.sum()
        tests = [Outcome(some > 0, exponential_log_weights(some, alpha)) for some in drawn]
        for estimates in ([test.estimate() for test in tests], bootstrap(tests)):
            assert 0.93 <= np.mean([one.low <= truth <= one.high for one in estimates]) <= 0.97
